// jobs: a work queue of Faktory under load, every job counted. Producers push, workers fetch and acknowledge; nothing
// is answered, for Faktory has no answers.
//
//   jobs --port N [--producers 16] [--workers 16] [--window 64] [--seconds 10]
//
//   producer   has --window pushes in one write, then reads as many answers; it waits while as many jobs of all are not
//              done as all producers write at once, so that workers keep up, as they do with calls
//   worker     acknowledges the job before and fetches the next in one write
//
// A thread each, blocking. After --seconds nothing more is pushed, and what was pushed is worked off. One JSON object:
// jobs pushed and done, done more than once, done /s within the seconds, processor time of this process.
//
//   client: HELLO {"v":2,...} | PUSH {job} | FETCH queue | ACK {"jid":".."}
//   server: +HI {"v":2} | +OK | $length CRLF json CRLF | $-1 (nothing came within two seconds) | -ERR text
#include <sys/resource.h>

#include <atomic>
#include <map>
#include <thread>
#include <vector>

#include "socket.h"

struct Lines : Socket {
  std::string line() {
    size_t end;
    while ((end = input.find("\r\n", at_)) == std::string::npos) more();
    std::string found = input.substr(at_, end - at_);
    at_ = end + 2;
    if (!found.empty() && found[0] == '-') throw std::runtime_error("faktory: " + found);
    return found;
  }

  // A bulk string; empty: there is none.
  std::string bulk() {
    std::string head = line();
    if (head.empty() || head[0] != '$') throw std::runtime_error("a length was expected, not " + head);
    long length = atol(head.c_str() + 1);
    if (length < 0) return "";
    while (input.size() - at_ < (size_t)length + 2) more();
    std::string found = input.substr(at_, (size_t)length);
    at_ += (size_t)length + 2;
    return found;
  }

  void enter(int port, const std::string& wid) {
    open("127.0.0.1", port, 60);
    line();  // +HI
    std::string who = wid.empty() ? "" : ",\"hostname\":\"bench\",\"pid\":1,\"labels\":[],\"wid\":\"" + wid + "\"";
    send_all("HELLO {\"v\":2" + who + "}\r\n");
    line();
  }

 private:
  size_t at_ = 0;

  void more() {
    input.erase(0, at_);
    at_ = 0;
    fill();
  }
};

static std::atomic<long> pushed{0}, done{0}, doubled{0}, within{0};
static std::vector<std::atomic<uint8_t>> seen(1 << 24);

static void produce(int port, long window, long ahead, uint64_t until_ns) {
  Lines link;
  link.enter(port, "");
  while (now_ns() < until_ns) {
    if (pushed - done >= ahead) {
      usleep(1000);
      continue;
    }
    std::string out;
    long first = pushed.fetch_add(window);
    if (first + window > (long)seen.size()) throw std::runtime_error("more jobs than can be counted");
    for (long i = first; i < first + window; i++)
      out += "PUSH {\"jid\":\"bench-" + std::to_string(100000000 + i) + "\",\"jobtype\":\"work\",\"queue\":\"default\"," +
             "\"args\":[\"" + std::string(40, 'x') + "\"]}\r\n";
    link.send_all(out);
    for (long i = 0; i < window; i++) link.line();
  }
}

static void work(int port, int number, const std::atomic<bool>& over, uint64_t until_ns) {
  Lines link;
  link.enter(port, "bench-worker-" + std::to_string(number));
  std::string before;
  for (;;) {
    link.send_all(before + "FETCH default\r\n");
    if (!before.empty()) {
      link.line();
      done++;
      if (now_ns() < until_ns) within++;
      before.clear();
    }
    std::string job = link.bulk();
    if (job.empty()) {
      if (over && done == pushed) return;
      continue;
    }
    size_t at = job.find("\"jid\":\"bench-");
    if (at == std::string::npos) throw std::runtime_error("not a job of this run: " + job);
    std::string jid = job.substr(at + 7, 15);
    if (seen[(size_t)(atol(jid.c_str() + 6) - 100000000)].exchange(1)) doubled++;
    before = "ACK {\"jid\":\"" + jid + "\"}\r\n";
  }
}

int main(int argc, char** argv) {
  std::map<std::string, long> o{{"--port", 7419}, {"--producers", 16}, {"--workers", 16}, {"--window", 64}, {"--seconds", 10}};
  for (int i = 1; i + 1 < argc; i += 2) {
    if (!o.count(argv[i])) { fprintf(stderr, "jobs: unknown %s\n", argv[i]); return 2; }
    o[argv[i]] = atol(argv[i + 1]);
  }
  int port = (int)o["--port"];
  uint64_t began_ns = now_ns(), until_ns = began_ns + (uint64_t)o["--seconds"] * 1000000000ull;
  std::atomic<bool> over{false};
  std::vector<std::thread> producers, workers;
  auto guarded = [](auto f) {
    return [f] {
      try { f(); } catch (const std::exception& error) { fprintf(stderr, "jobs: %s\n", error.what()); exit(1); }
    };
  };
  for (int i = 0; i < o["--workers"]; i++) workers.emplace_back(guarded([=, &over] { work(port, i, over, until_ns); }));
  long ahead = o["--producers"] * o["--window"];
  for (int i = 0; i < o["--producers"]; i++)
    producers.emplace_back(guarded([=, &o] { produce(port, o.at("--window"), ahead, until_ns); }));
  for (auto& each : producers) each.join();
  double pushed_s = (double)(now_ns() - began_ns) / 1e9;
  over = true;
  for (auto& each : workers) each.join();
  rusage used;
  getrusage(RUSAGE_SELF, &used);
  auto s = [](timeval t) { return (double)t.tv_sec + (double)t.tv_usec / 1e6; };
  printf("{\"pushed\": %ld, \"done\": %ld, \"doubled\": %ld, \"pushed_rate\": %.1f, \"done_rate\": %.1f, \"cpu_s\": %.3f}\n",
         pushed.load(), done.load(), doubled.load(), (double)pushed / pushed_s, (double)within / (double)o["--seconds"],
         s(used.ru_utime) + s(used.ru_stime));
  return doubled || done != pushed;
}
