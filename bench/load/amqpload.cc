// amqpload: a load generator and loss checker for any broker of AMQP 0-9-1 or 1.0 (--protocol).
//
//   amqpload run     publish and/or consume, check every message, print one JSON object
//   amqpload idle    open --count connections with one channel each, print "ready", hold them until stdin ends
//   amqpload survive the same through failovers: reconnect, publish again, consume on, and write down every gap
//                    (prints "running" when it does; SIGTERM ends the publishing; see survive.h)
//   amqpload calls   requests by key, workers that answer them, every call checked (see calls.h)
//   amqpload declare declare --count queues, bind each to an exchange where --bind names one, print how long it took
//   amqpload depth   declare the queue passively and print its message count (exit 1 while that is refused)
//
// The generator must cost little beside the broker. One thread (or one for publishers and one for consumers:
// --threads 2) waits in epoll. A publisher owns a block of finished publish frames, of which only sequence, time
// stamp and trailer are patched before the block is sent again. Consumers parse in place. The clock is read once
// per block and once per socket read. Build: g++ -O2 -pthread -o amqpload amqpload.cc
//
// Every body: publisher(2) sequence(6) stamp(8) filler ... and, where it is at least 24 bytes long, the first
// eight bytes again at its end. See tally.h for what counts as lost, duplicate, misordered and corrupt.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <functional>
#include <map>
#include <thread>

#include "calls.h"
#include "run.h"
#include "survive.h"

// "5001,5002" as numbers; the one port where none are named.
static std::vector<long> ports(const std::string& text, long otherwise) {
  std::vector<long> found;
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find(',', at), text.size());
    found.push_back(atol(text.substr(at, end - at).c_str()));
    at = end + 1;
  }
  if (found.empty()) found.push_back(otherwise);
  return found;
}

static bool is10(const std::string& protocol) {
  if (protocol != "1.0" && protocol != "0-9-1") throw std::invalid_argument("a protocol is 0-9-1 or 1.0, not " + protocol);
  return protocol == "1.0";
}

static Options parse(int argc, char** argv) {
  Options o;
  std::string publisher_ports, consumer_ports;
  std::map<std::string, std::string*> texts{{"--host", &o.host}, {"--user", &o.user}, {"--password", &o.password},
      {"--vhost", &o.vhost}, {"--queue", &o.queue}, {"--args", &o.args}, {"--bind", &o.bind}, {"--exchange", &o.exchange}, {"--key-prefix", &o.key_prefix},
      {"--publisher-ports", &publisher_ports}, {"--consumer-ports", &consumer_ports}};
  std::map<std::string, long*> numbers{{"--port", &o.port}, {"--publishers", &o.publishers},
      {"--consumers", &o.consumers}, {"--queues", &o.queues}, {"--size", &o.size}, {"--window", &o.window},
      {"--prefetch", &o.prefetch}, {"--ack-every", &o.ack_every}, {"--count", &o.count}, {"--expect", &o.expect},
      {"--threads", &o.threads}, {"--timeout", &o.timeout_s}, {"--keys", &o.keys}, {"--channels", &o.channels}};
  std::map<std::string, double*> reals{{"--rate", &o.rate}, {"--seconds", &o.seconds}, {"--warm", &o.warm_s},
      {"--drain", &o.drain_s}, {"--gap-ms", &o.gap_ms}};
  int at = 1;
  if (at < argc && argv[at][0] != '-') o.verb = argv[at++];
  if (o.verb == "calls") o.publishers = 16, o.consumers = 4, o.window = 64, o.prefetch = 64;
  for (; at < argc; at++) {
    std::string name = argv[at];
    if (name == "--transient") { o.durable = o.persistent = false; continue; }
    if (name == "--no-confirm") { o.confirm = false; continue; }
    if (name == "--auto-ack") { o.auto_ack = true; continue; }
    if (name == "--no-declare") { o.declare = false; continue; }
    if (name == "--recoverable") { o.recoverable = true; continue; }
    if (name == "--reply-queues") { o.reply_queues = true; continue; }
    if (at + 1 >= argc) throw std::invalid_argument(name + " is unknown or needs a value");
    std::string value = argv[++at];
    if (texts.count(name)) *texts[name] = value;
    else if (numbers.count(name)) *numbers[name] = atol(value.c_str());
    else if (reals.count(name)) *reals[name] = atof(value.c_str());
    else if (name == "--protocol") o.sends10 = o.receives10 = is10(value);
    else if (name == "--publish-protocol") o.sends10 = is10(value);
    else if (name == "--consume-protocol") o.receives10 = is10(value);
    else throw std::invalid_argument("unknown option " + name);
  }
  if (o.size < 16) throw std::invalid_argument("--size is at least 16: sequence and time stamp travel in the body");
  if (o.publishers > 65535 || o.queues < 1 || o.window < 1) throw std::invalid_argument("a number is out of range");
  if (o.keys < 1 || o.channels < 1) throw std::invalid_argument("there is one key and one channel at least");
  o.publisher_ports = ports(publisher_ports, o.port);
  o.consumer_ports = ports(consumer_ports, o.port);
  return o;
}

// `name`: of the link that it is for; its container's id is made of it.
static Link10 dialled10(const Options& o, const std::string& name, long port = 0) {
  Link10 link;
  link.dial(o.host, (int)(port ? port : o.port), o.user, o.password, o.vhost, (int)o.timeout_s, "amqpload-" + name);
  return link;
}

// With AMQP 1.0 each has a session with two links.
static int idle(const Options& o) {
  std::vector<Link> links;
  std::vector<Link10> links10;
  if (o.sends10 && o.declare) dialled(o).declare(o.queue, false, o.durable, table_entries(o.args));
  uint64_t started = now_ns();
  for (long i = 0; i < o.count; i++) {
    if (!o.sends10) { links.push_back(dialled(o)); continue; }
    std::string name = "idle-" + std::to_string(i);
    links10.push_back(dialled10(o, name));
    links10.back().attach(name, 0, false, "/queues/" + o.queue, false, false);
    links10.back().attach(name, 1, true, "/queues/" + o.queue, false, false);
  }
  printf("{\"connections\":%ld,\"elapsed_s\":%.3f}\nready\n", o.count, (double)(now_ns() - started) / 1e9);
  fflush(stdout);
  while (getchar() != EOF) {
  }
  for (auto& link : links) link.close_in_order();
  for (auto& link : links10) link.close_in_order();
  return 0;
}

static int declare(const Options& o) {
  Link link = dialled(o);
  std::string entries = table_entries(o.args);
  uint64_t started = now_ns();
  in_batches(link, o.count, kQueueDeclareOk, [&](long i) {
    return method_frame(1, kQueueDeclare, Link::declare_arguments(o.queue + std::to_string(i), false, o.durable, entries));
  });
  uint64_t declared = now_ns();
  if (!o.bind.empty())
    in_batches(link, o.count, kQueueBindOk, [&](long i) {
      std::string name = o.queue + std::to_string(i);
      return method_frame(1, kQueueBind, Writer().u16(0).shortstr(name).shortstr(o.bind).shortstr("key." + name).u8(0).longstr("").bytes);
    });
  printf("{\"queues\":%ld,\"elapsed_s\":%.3f,\"binding_s\":%.3f}\n", o.count, (double)(declared - started) / 1e9,
         (double)(now_ns() - declared) / 1e9);
  link.close_in_order();
  return 0;
}

static Survivors* surviving = nullptr;

static int survive(const Options& o) {
  Survivors survivors(o);
  surviving = &survivors;
  signal(SIGTERM, [](int) { surviving->publishing = false; });
  survivors.run();
  return survivors.report() ? 0 : 1;
}

static int depth(const Options& o) {
  Link link = dialled(o);
  printf("{\"messages\":%u}\n", link.declare(o.queue, true, o.durable, ""));
  link.close_in_order();
  return 0;
}

static double cpu_s() {
  rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += (unsigned char)c < 32 ? ' ' : c;
  }
  return out + "\"";
}

static int run(const Options& o) {
  Run shared(o);
  std::vector<Loop> loops;
  loops.reserve(2);
  loops.emplace_back(shared);
  if (o.threads > 1) loops.emplace_back(shared);
  std::string entries = table_entries(o.args);
  auto queue_of = [&](long i) { return o.queues > 1 ? o.queue + std::to_string(i % o.queues) : o.queue; };
  // consumers first: a message must never find its queue undeclared, and the first latency is a real one
  if (o.declare && (o.sends10 || o.receives10)) {  // AMQP 1.0 declares nothing
    Link link = dialled(o, o.publisher_ports[0]);
    for (long i = 0; i < std::max(o.queues, 1L); i++) link.declare(queue_of(i), false, o.durable, entries);
    link.close_in_order();
  }
  for (long i = 0; i < o.consumers; i++) {
    long port = o.consumer_ports[(size_t)i % o.consumer_ports.size()];
    if (o.receives10) {
      std::string name = "consumer-" + std::to_string(i);
      Link10 link = dialled10(o, name, port);
      link.attach(name, 0, true, "/queues/" + queue_of(i), o.auto_ack, o.recoverable);
      loops[0].consumers.emplace_back(link, o);
      link.send_all(loops[0].consumers.back().receiver.flow((uint64_t)o.prefetch));
      continue;
    }
    Link link = dialled(o, port);
    if (o.declare) link.declare(queue_of(i), false, o.durable, entries);
    link.call(1, kBasicQos, Writer().u32(0).u16((unsigned)o.prefetch).u8(0).bytes, kBasicQosOk);
    link.call(1, kBasicConsume,
              Writer().u16(0).shortstr(queue_of(i)).shortstr("c").u8(o.auto_ack ? 2 : 0).longstr("").bytes, kBasicConsumeOk);
    loops[0].consumers.emplace_back(link, o);
  }
  for (long i = 0; i < o.publishers; i++) {
    long port = o.publisher_ports[(size_t)i % o.publisher_ports.size()];
    if (o.sends10) {
      std::string name = "publisher-" + std::to_string(i);
      Link10 link = dialled10(o, name, port);
      link.attach(name, 0, false, "/queues/" + queue_of(i), !o.confirm, o.recoverable);
      loops.back().publishers.emplace_back(link, o, (int)i);
      continue;
    }
    Link link = dialled(o, port);
    if (o.declare) link.declare(queue_of(i), false, o.durable, entries);
    if (o.confirm) link.call(1, kConfirmSelect, Writer().u8(0).bytes, kConfirmSelectOk);
    loops.back().publishers.emplace_back(link, o, (int)i, queue_of(i));
  }

  double cpu_before = cpu_s();
  shared.begin();
  std::thread second;
  if (loops.size() > 1) second = std::thread([&] { loops[1].turn_until_done(false); });
  loops[0].turn_until_done(true);
  if (second.joinable()) second.join();
  double cpu_used = cpu_s() - cpu_before;
  uint64_t ended = shared.last_progress;

  uint64_t published = 0, confirmed = 0, nacked = 0, lost = 0, unconfirmed = 0;
  for (auto& p : loops.back().publishers) {
    published += p.next;
    for (uint64_t s = 0; s < p.next; s++) {
      bool settled = !o.confirm || p.settled(s), refused = o.confirm && p.refused.test(s);
      nacked += refused;
      confirmed += o.confirm && settled && !refused;
      unconfirmed += !settled;
      if (o.consumers && settled && !refused && !shared.ledger.seen[(size_t)p.id].test(s)) lost++;
    }
  }
  for (uint64_t s = 0; o.publishers == 0 && s < (uint64_t)o.expect; s++) lost += !shared.ledger.seen[0].test(s);
  for (auto& loop : loops) loop.close_all();

  // a run of a given count has no window: its rates are over its whole length
  double window_s = o.count || o.publishers == 0 ? (double)(ended - shared.first_progress) / 1e9 : o.seconds;
  if (window_s <= 0) window_s = 1e-9;
  const Ledger& l = shared.ledger;
  bool clean = shared.error.empty() && !lost && !l.duplicates && !l.misordered && !l.corrupt && !l.bad_tags && !unconfirmed;
  printf("{\"clean\":%s,\"error\":%s,\"published\":%lu,\"confirmed\":%lu,\"unconfirmed\":%lu,\"nacked\":%lu,"
         "\"received\":%lu,\"lost\":%lu,\"duplicates\":%lu,\"misordered\":%lu,\"corrupt\":%lu,\"bad_tags\":%lu,"
         "\"redelivered\":%lu,\"blocked\":%lu,\"publish_rate\":%.0f,\"confirm_rate\":%.0f,\"receive_rate\":%.0f,"
         "\"window_s\":%.3f,\"from_ns\":%lu,\"to_ns\":%lu,\"cpu_s\":%.3f,\"latency_us\":%s,\"confirm_latency_us\":%s}\n",
         clean ? "true" : "false", quoted(shared.error).c_str(), published, confirmed, unconfirmed, nacked,
         l.received, lost, l.duplicates, l.misordered, l.corrupt, l.bad_tags, l.redelivered,
         (unsigned long)shared.blocked, (double)shared.published_in_window / window_s,
         (double)shared.confirmed_in_window / window_s, (double)shared.received_in_window / window_s, window_s, shared.measure_from,
         std::min(shared.measure_to, ended), cpu_used,
         shared.latency.json_us().c_str(), shared.confirm_latency.json_us().c_str());
  return clean ? 0 : 1;
}

static int calls(const Options& o) {
  Run shared(o);
  Calls calls(shared);
  calls.dial();
  double cpu_before = cpu_s();
  shared.begin();
  calls.turn_until_done();
  double cpu_used = cpu_s() - cpu_before;
  uint64_t ended = shared.last_progress, lost = calls.lost();
  calls.close_all();

  double window_s = o.count ? std::max((double)(ended - shared.start) / 1e9, 1e-9) : o.seconds;
  const Ledger& l = shared.ledger;
  uint64_t duplicates = l.duplicates + calls.duplicates, corrupt = l.corrupt + calls.corrupt;
  bool clean = shared.error.empty() && !lost && !duplicates && !corrupt && !l.misordered && !l.bad_tags && !calls.refused;
  printf("{\"clean\":%s,\"error\":%s,\"calls\":%lu,\"answered\":%lu,\"refused\":%lu,\"refusal\":%s,\"lost\":%lu,"
         "\"duplicates\":%lu,\"misordered\":%lu,\"corrupt\":%lu,\"bad_tags\":%lu,\"redelivered\":%lu,\"blocked\":%lu,"
         "\"call_rate\":%.0f,\"window_s\":%.3f,\"from_ns\":%lu,\"to_ns\":%lu,\"cpu_s\":%.3f,\"latency_us\":%s}\n",
         clean ? "true" : "false", quoted(shared.error).c_str(), (unsigned long)shared.published,
         (unsigned long)shared.settled - calls.refused, calls.refused, quoted(calls.first_refusal).c_str(), lost, duplicates,
         l.misordered, corrupt, l.bad_tags, l.redelivered, (unsigned long)shared.blocked,
         (double)shared.confirmed_in_window / window_s, window_s, shared.measure_from, std::min(shared.measure_to, ended),
         cpu_used, shared.latency.json_us().c_str());
  return clean ? 0 : 1;
}

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
  try {
    Options o = parse(argc, argv);
    if (o.verb == "run") return run(o);
    if (o.verb == "survive") return survive(o);
    if (o.verb == "calls") return calls(o);
    if (o.verb == "idle") return idle(o);
    if (o.verb == "declare") return declare(o);
    if (o.verb == "depth") return depth(o);
    throw std::invalid_argument("unknown verb " + o.verb);
  } catch (const std::invalid_argument& e) {
    fprintf(stderr, "amqpload: %s\n", e.what());
    return 2;
  } catch (const std::exception& e) {
    fprintf(stderr, "amqpload: %s\n", e.what());
    return 1;
  }
}
