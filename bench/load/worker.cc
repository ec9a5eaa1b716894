// A worker of a pool, in C++ with nothing but a socket: the least that a worker can be, and so the measure of all that
// a broker and its foreman do around it (bench.pool_starts, bench.pool_steps).
//
//   WORKER_AMQP_URI        amqp://USER:PASSWORD@ADDRESS:PORT[/VHOST], percent-encoded; the address is a number
//   WORKER_REQUESTS_QUEUE  consumed, with acknowledgement
//   WORKER_PREFETCH        1 if it is not set
//   BENCH_LOAD_MS          it waits so long before it connects, as one that loads something
//
// A request's body begins with the number of ms that its work takes. The answer goes to its reply_to with its
// correlation_id, where it has a reply_to, and is three times of CLOCK_REALTIME, ns (main was entered, the request came,
// its work was done), and the request's body.
// TERM ends it at once: what it holds goes back to the queue.
#include "calls.h"

static uint64_t wall_ns() {
  timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static std::string variable(const char* name, const char* otherwise) {
  const char* value = getenv(name);
  if (!value && !otherwise) throw std::runtime_error(std::string(name) + " is not set: a pool starts this program");
  return value ? value : otherwise;
}

static std::string decoded(const std::string& text) {
  std::string found;
  for (size_t at = 0; at < text.size(); at++)
    if (text[at] == '%' && at + 2 < text.size()) {
      found.push_back((char)strtol(text.substr(at + 1, 2).c_str(), nullptr, 16));
      at += 2;
    } else {
      found.push_back(text[at]);
    }
  return found;
}

struct Address {
  std::string user, password, host, vhost = "/";
  int port = 5672;

  explicit Address(const std::string& uri) {
    size_t scheme = uri.find("://"), at = uri.rfind('@');
    if (scheme == std::string::npos || at == std::string::npos) throw std::runtime_error("not an AMQP address");
    std::string who = uri.substr(scheme + 3, at - scheme - 3), where = uri.substr(at + 1);
    size_t colon = who.find(':'), slash = where.find('/');
    user = decoded(who.substr(0, colon));
    password = decoded(who.substr(colon + 1));
    if (slash != std::string::npos && slash + 1 < where.size()) vhost = decoded(where.substr(slash + 1));
    where = where.substr(0, slash);
    colon = where.rfind(':');
    host = where.substr(0, colon);
    if (colon != std::string::npos) port = atoi(where.substr(colon + 1).c_str());
  }
};

struct Request {
  uint64_t tag = 0, size = 0;
  std::string reply_to, correlation_id, body;
};

struct Requests : Link {
  // Waits for the next whole frame; its type, and its payload in `payload`.
  int next(std::string& payload) {
    for (;;) {
      const uint8_t* head = (const uint8_t*)input.data();
      if (input.size() >= kFrameOverhead && input.size() >= kFrameOverhead + get32(head + 3)) {
        int type = head[0];
        payload = input.substr(7, get32(head + 3));
        input.erase(0, payload.size() + kFrameOverhead);
        return type;
      }
      fill();
    }
  }

  Request next_request() {
    std::string payload;
    Request found;
    for (;;) {
      int type = next(payload);
      const uint8_t* p = (const uint8_t*)payload.data();
      if (type == kMethod) {
        uint32_t id = get32(p);
        if (id == kBasicDeliver) found.tag = get64(p + 5 + p[4]);
        if (id == kConnectionClose || id == kChannelClose) throw std::runtime_error(close_reason(p, payload.size()));
        if (id == kBasicCancel) throw std::runtime_error("its queue is gone");
      } else if (type == kHeader) {
        found.size = get64(p + 4);
        Properties properties(p);
        found.reply_to = Properties::of(properties.reply_to);
        found.correlation_id = Properties::of(properties.correlation);
      } else if (type == kBody) {
        found.body += payload;
      }
      if (type != kMethod && type != kHeartbeat && found.body.size() == found.size) return found;
    }
  }
};

static std::string answered(const Request& request, const std::string& body) {
  std::string out;
  if (!request.reply_to.empty()) {
    bool correlated = !request.correlation_id.empty();
    Writer header;
    header.u16(60).u16(0).u64(body.size()).u16(correlated ? 1 << 10 : 0);
    if (correlated) header.shortstr(request.correlation_id);
    out += method_frame(1, kBasicPublish, Writer().u16(0).shortstr("").shortstr(request.reply_to).u8(0).bytes);
    out += frame(kHeader, 1, header.bytes) + frame(kBody, 1, body);
  }
  return out + method_frame(1, kBasicAck, Writer().u64(request.tag).u8(0).bytes);
}

int main() {
  uint64_t began_ns = wall_ns();
  try {
    usleep(1000u * (unsigned)atol(variable("BENCH_LOAD_MS", "0").c_str()));
    Address address(variable("WORKER_AMQP_URI", nullptr));
    Requests link;
    link.dial(address.host, address.port, address.user, address.password, address.vhost, 86400);
    long prefetch = atol(variable("WORKER_PREFETCH", "1").c_str());
    link.call(1, kBasicQos, Writer().u32(0).u16((unsigned)prefetch).u8(0).bytes, kBasicQosOk);
    Writer consume;
    consume.u16(0).shortstr(variable("WORKER_REQUESTS_QUEUE", nullptr)).shortstr("w").u8(0).longstr("");
    link.call(1, kBasicConsume, consume.bytes, kBasicConsumeOk);
    for (;;) {
      Request request = link.next_request();
      uint64_t came_ns = wall_ns();
      usleep(1000u * (unsigned)atol(request.body.c_str()));
      link.send_all(answered(request, std::to_string(began_ns) + " " + std::to_string(came_ns) + " " +
                                          std::to_string(wall_ns()) + " " + request.body));
    }
  } catch (const std::exception& error) {
    fprintf(stderr, "worker: %s\n", error.what());
    return 1;
  }
}
