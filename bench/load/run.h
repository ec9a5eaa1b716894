// The measured part of a run: publishers that patch and send blocks of finished frames, consumers that parse in
// place, and the loop that waits for both.
#pragma once
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <atomic>
#include <vector>

#include "tally.h"
#include "wire.h"
#include "wire10.h"

struct Options {
  std::string verb = "run", host = "127.0.0.1", user = "guest", password = "guest", vhost = "/", queue = "load", args, bind;
  long port = 5672, publishers = 1, consumers = 1, queues = 1, size = 100, window = 1000, prefetch = 1000;
  long ack_every = 50;  // one basic.ack multiple for so many deliveries
  long count = 0;       // per publisher; 0: publish for warm + seconds
  long expect = 0;      // without publishers: how many messages of publisher 0 must arrive
  long threads = 1, timeout_s = 60;
  double rate = 0;      // messages/s of all publishers together; 0: as fast as the broker takes them
  double seconds = 10, warm_s = 2, drain_s = 20;  // drain: give up after so long without any progress
  double gap_ms = 50;   // survive: shorter silences are not written down
  std::vector<long> publisher_ports, consumer_ports;  // of a cluster: client i begins with the i-th, round and round
  bool durable = true, persistent = true, confirm = true, auto_ack = false, declare = true;
  bool sends10 = false, receives10 = false;  // the protocol of publishers and of consumers: AMQP 1.0, or 0-9-1
  bool recoverable = false;                  // AMQP 1.0: links whose state survives their connection
  // of calls alone (calls.h)
  std::string exchange, key_prefix = "k";
  long keys = 1000, channels = 4;
  bool reply_queues = false;
};

inline Link dialled(const Options& o, long port = 0) {
  Link link;
  link.dial(o.host, (int)(port ? port : o.port), o.user, o.password, o.vhost, (int)o.timeout_s);
  return link;
}

// Sends the last bytes of a run and closes its connection, which is of this kind.
template <class Kind>
void close_after(Kind link, int fd, const std::string& last) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  link.fd = fd;
  try {
    link.send_all(last);
  } catch (const std::runtime_error&) {
  }
  link.close_in_order();
}

// What both threads see. The ledger and the histograms each belong to one thread.
struct Run {
  const Options& o;
  Ledger ledger;
  Histogram latency, confirm_latency;
  uint64_t start = 0, measure_from = 0, measure_to = 0, first_progress = 0;
  std::atomic<uint64_t> published{0}, settled{0}, refused{0}, received{0}, blocked{0}, last_progress{0};
  std::atomic<uint64_t> published_in_window{0}, confirmed_in_window{0}, received_in_window{0};
  std::atomic<bool> publishing{true}, stop{false};
  std::string error;  // written once, by whoever sets stop first

  explicit Run(const Options& options)
      : o(options), ledger(options.publishers ? (size_t)options.publishers : 1) {}

  void begin() {
    start = first_progress = now_ns();
    last_progress = start;
    bool windowed = o.count == 0 && o.publishers > 0;
    measure_from = windowed ? start + (uint64_t)(o.warm_s * 1e9) : start;
    measure_to = windowed ? measure_from + (uint64_t)(o.seconds * 1e9) : UINT64_MAX;
  }
  bool in_window(uint64_t t) const { return t >= measure_from && t <= measure_to; }
  void fail(const std::string& why) {
    if (!stop.exchange(true)) error = why;
  }
};

struct Publisher {
  int fd, id;
  bool amqp10;
  Sender10 sender;  // AMQP 1.0 alone
  std::vector<uint8_t> block;  // `slots` finished messages of `stride` bytes each
  size_t stride, body_at, slots, used = 0, sent = 0;
  uint64_t next = 0, watermark = 0;  // next sequence to publish; all below the watermark are settled
  Bitmap early, refused;             // settled beyond the watermark; nacked
  std::vector<uint64_t> stamps;      // publish time by sequence modulo its size, for confirm latencies
  std::string input;
  bool blocked = false, waits_for_room = false;

  Publisher(Link& link, const Options& o, int id_, const std::string& queue)
      : fd(link.fd), id(id_), amqp10(false), input(link.input) {
    if ((uint64_t)o.size + kFrameOverhead > link.frame_max) throw std::runtime_error("the body must fit into one frame");
    std::string publish = method_frame(1, kBasicPublish, Writer().u16(0).shortstr("").shortstr(queue).u8(0).bytes);
    // delivery-mode only, as most clients' fastest presets have it
    std::string header = frame(kHeader, 1, Writer().u16(60).u16(0).u64((uint64_t)o.size).u16(0x1000).u8(o.persistent ? 2 : 1).bytes);
    fill_block(publish + header + frame(kBody, 1, std::string((size_t)o.size, 'x')), publish.size() + header.size() + 7, o);
  }

  Publisher(Link10& link, const Options& o, int id_) : fd(link.fd), id(id_), amqp10(true), input(link.input) {
    if ((uint64_t)o.size + 64 > link.frame_max) throw std::runtime_error("the body must fit into one frame");
    Transfer10 one((size_t)o.size, o.persistent, !o.confirm);
    sender.window_until = link.window;
    fill_block(one.bytes, one.body_at, o);
  }

  bool settled(uint64_t sequence) const { return sequence < watermark || early.test(sequence); }

  void patch(size_t slot, size_t size, uint64_t stamp) {
    uint8_t* one = block.data() + slot * stride;
    uint8_t* body = one + body_at;
    if (amqp10) put32(one + Transfer10::kIdAt, (uint32_t)next), put32(one + Transfer10::kTagAt, (uint32_t)next);
    uint64_t mark = (uint64_t)id << 48 | next;
    put64(body, mark);
    memcpy(body + 8, &stamp, 8);
    if (size >= 24) memcpy(body + size - 8, body, 8);
    if (!stamps.empty()) stamps[next & (stamps.size() - 1)] = stamp;
    next++;
  }

 private:
  void fill_block(const std::string& one, size_t body_at_, const Options& o) {
    stride = one.size();
    body_at = body_at_;
    slots = std::max<size_t>(1, (128u << 10) / stride);
    if (o.confirm) {
      slots = std::min(slots, (size_t)o.window);
      size_t ring = 1;
      while (ring < (size_t)o.window) ring *= 2;
      stamps.resize(ring);
    }
    for (size_t i = 0; i < slots; i++) block.insert(block.end(), one.begin(), one.end());
  }
};

struct Consumer {
  int fd;
  bool amqp10;
  Receiver10 receiver;  // AMQP 1.0 alone
  std::string input;           // the unfinished frame that the last read ended in
  std::string acks;
  std::vector<uint64_t> next;  // per publisher, the lowest sequence that is in order here
  uint64_t last_tag = 0, unacked = 0, body_left = 0;
  bool again = false, waits_for_room = false;
  std::string body;            // only for bodies that came in several frames

  Consumer(Socket& link, const Options& o)
      : fd(link.fd), amqp10(o.receives10), input(link.input), next(o.publishers ? (size_t)o.publishers : 1, 0) {}

  void acknowledge() {
    if (!unacked) return;
    if (amqp10) {
      acks += Receiver10::accepted(receiver.deliveries - 1, unacked);
      unacked = 0;
      return;
    }
    append_ack(acks, 1, last_tag);
    unacked = 0;
  }
};

// The one buffer that all connections of a thread are read into, which stays in the cache.
class Scratch {
 public:
  const uint8_t* data() const { return bytes_.data(); }

  void put(const std::string& rest) {
    if (bytes_.size() < rest.size() + kReadBytes) bytes_.resize(rest.size() + kReadBytes);
    memcpy(bytes_.data(), rest.data(), rest.size());
  }

  // Reads behind the rest of the last read. -1: nothing or failed.
  ssize_t read_behind(Run& run, int fd, const std::string& rest) {
    put(rest);
    ssize_t n = recv(fd, bytes_.data() + rest.size(), kReadBytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
    if (n <= 0) return run.fail("connection dropped by the broker"), -1;
    return n + (ssize_t)rest.size();
  }

 private:
  static constexpr size_t kReadBytes = 256u << 10;
  std::vector<uint8_t> bytes_ = std::vector<uint8_t>(kReadBytes + (1u << 20));
};

// A non-blocking descriptor in an epoll set: what is read, and room for what is written if that is waited for.
inline void watch(int ep, int operation, int fd, uint64_t key, bool room) {
  if (operation == EPOLL_CTL_ADD) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  epoll_event e{};
  e.events = EPOLLIN | (room ? (uint32_t)EPOLLOUT : 0u);
  e.data.u64 = key;
  epoll_ctl(ep, operation, fd, &e);
}

class Loop {
 public:
  std::vector<Publisher> publishers;
  std::vector<Consumer> consumers;

  explicit Loop(Run& run) : run_(run), o_(run.o) {}

  // `decides`: this loop also decides when the run is over.
  void turn_until_done(bool decides) {
    ep_ = epoll_create1(EPOLL_CLOEXEC);
    for (size_t i = 0; i < publishers.size(); i++) watch(ep_, EPOLL_CTL_ADD, publishers[i].fd, i << 1, false);
    for (size_t i = 0; i < consumers.size(); i++) watch(ep_, EPOLL_CTL_ADD, consumers[i].fd, i << 1 | 1, false);
    for (auto& c : consumers) {
      if (!c.input.empty()) parse_deliveries(c, 0);  // what came together with consume-ok
    }
    for (auto& p : publishers)
      if (p.amqp10 && !p.input.empty()) take_in(p, 0);  // the first credit
    int ticker = o_.rate > 0 ? start_ticker() : -1;
    while (!run_.stop) {
      uint64_t now = now_ns();
      if (run_.publishing && now >= run_.measure_to) run_.publishing = false;
      bool more = false;
      for (auto& p : publishers) more |= pump(p, now);
      if (decides) decide(now);
      epoll_event events[128];
      int n = epoll_wait(ep_, events, 128, more ? 0 : 5);
      for (int i = 0; i < n && !run_.stop; i++) {
        uint64_t key = events[i].data.u64;
        if (key == kTicker) {
          uint64_t ticks;
          (void)!read(ticker, &ticks, 8);
        } else if (key & 1) {
          serve(consumers[key >> 1], events[i].events);
        } else {
          serve(publishers[key >> 1], events[i].events);
        }
      }
      if (n == 0 && !more)  // idle: leave nothing unacknowledged
        for (auto& c : consumers) c.acknowledge(), flush_acks(c);
    }
    if (ticker >= 0) ::close(ticker);
    ::close(ep_);
  }

  void close_all() {
    auto close_one = [&](int fd, const std::string& last, bool amqp10) {
      amqp10 ? close_after(Link10(), fd, last) : close_after(Link(), fd, last);
    };
    bool orderly = run_.error.empty();
    for (auto& c : consumers) {
      c.acknowledge();
      orderly ? close_one(c.fd, c.acks, c.amqp10) : (void)::close(c.fd);
    }
    for (auto& p : publishers) orderly && p.used == p.sent ? close_one(p.fd, "", p.amqp10) : (void)::close(p.fd);
  }

 private:
  static constexpr uint64_t kTicker = UINT64_MAX;
  Run& run_;
  const Options& o_;
  Scratch scratch_;
  int ep_ = -1;
  uint64_t complete_at_ = 0;

  int start_ticker() {
    int fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    long interval = std::max(100000L, (long)(1e9 / o_.rate));
    itimerspec every{{interval / 1000000000, interval % 1000000000}, {0, interval}};
    timerfd_settime(fd, 0, &every, nullptr);
    epoll_event e{};
    e.events = EPOLLIN;
    e.data.u64 = kTicker;
    epoll_ctl(ep_, EPOLL_CTL_ADD, fd, &e);
    return fd;
  }

  void progress(uint64_t now) { run_.last_progress.store(now, std::memory_order_relaxed); }

  // Over when everything has arrived and a moment passed in which a duplicate could have shown itself.
  void decide(uint64_t now) {
    if (o_.count && run_.published >= (uint64_t)(o_.count * o_.publishers)) run_.publishing = false;
    if (!o_.publishers) run_.publishing = false;
    uint64_t published = o_.publishers ? run_.published.load() : (uint64_t)o_.expect;
    bool complete = !run_.publishing && (!o_.confirm || !o_.publishers || run_.settled >= published) &&
                    (!o_.consumers || run_.received >= published - run_.refused);
    if (!complete) complete_at_ = 0;
    else if (!complete_at_) complete_at_ = now;
    else if (now - complete_at_ > 200000000) run_.stop = true;
    if (!complete && now > run_.last_progress && now - run_.last_progress > (uint64_t)(o_.drain_s * 1e9))
      run_.fail("no progress for " + std::to_string((int)o_.drain_s) + " s");
  }

  // Sends what is due; true when more could be sent at once.
  bool pump(Publisher& p, uint64_t now) {
    if (p.waits_for_room || p.blocked) return false;
    if (p.sent == p.used && p.sender.echo && !answer(p)) return false;
    if (p.sent == p.used && !fill(p, now)) return false;
    ssize_t n = send(p.fd, p.block.data() + p.sent, p.used - p.sent, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return run_.fail(std::string("publisher lost: ") + strerror(errno)), false;
    if (n > 0) p.sent += (size_t)n;
    if (p.sent < p.used) {
      p.waits_for_room = true;
      watch(ep_, EPOLL_CTL_MOD, p.fd, key_of(p), true);
      return false;
    }
    return true;
  }

  // Between two blocks, so that no frame is divided. False when the connection is lost.
  bool answer(Publisher& p) {
    p.sender.echo = false;
    std::string flow = Sender10::answer(p.next);
    if (send(p.fd, flow.data(), flow.size(), MSG_NOSIGNAL) == (ssize_t)flow.size()) return true;
    return run_.fail("publisher lost, or no room for a flow"), false;
  }

  bool fill(Publisher& p, uint64_t now) {
    if (!run_.publishing) return false;
    size_t n = p.slots;
    if (p.amqp10) n = std::min<size_t>(n, p.sender.room(p.next));
    if (o_.confirm) n = std::min<size_t>(n, (size_t)o_.window - (p.next - p.watermark));
    if (o_.count) n = std::min<size_t>(n, (size_t)o_.count - p.next);
    double rate = o_.rate / (double)o_.publishers;
    if (o_.rate > 0) {
      uint64_t due = (uint64_t)((double)(now - run_.start) / 1e9 * rate);
      n = due > p.next ? std::min<size_t>(n, due - p.next) : 0;
    }
    if (!n) return false;
    for (size_t i = 0; i < n; i++) {
      // at a fixed rate the stamp is the time when the message was due, so that a stalled broker
      // cannot hide the waiting of messages that it kept from being sent
      uint64_t stamp = o_.rate > 0 ? run_.start + (uint64_t)((double)(p.next + 1) / rate * 1e9) : now;
      p.patch(i, (size_t)o_.size, stamp);
    }
    p.used = n * p.stride;
    p.sent = 0;
    progress(now);
    run_.published.fetch_add(n, std::memory_order_relaxed);
    if (run_.in_window(now)) run_.published_in_window.fetch_add(n, std::memory_order_relaxed);
    return true;
  }

  uint64_t key_of(const Publisher& p) const { return (uint64_t)(&p - publishers.data()) << 1; }

  void serve(Publisher& p, uint32_t events) {
    if (events & EPOLLOUT && p.waits_for_room) {
      p.waits_for_room = false;
      watch(ep_, EPOLL_CTL_MOD, p.fd, key_of(p), false);
    }
    if (!(events & ~(uint32_t)EPOLLOUT)) return;
    ssize_t n = scratch_.read_behind(run_, p.fd, p.input);
    if (n >= 0) take_in(p, (size_t)n);
  }

  // Confirms, outcomes, credit. 0 available: the rest of the set-up conversation.
  void take_in(Publisher& p, size_t available) {
    if (!available) {
      available = p.input.size();
      scratch_.put(p.input);
    }
    uint64_t now = now_ns(), settled = 0;
    const uint8_t *at = scratch_.data(), *end = at + available;
    if (p.amqp10) settled = parse_outcomes(p, at, end, now);
    else settled = parse_confirms(p, at, end, now);
    p.input.assign((const char*)at, (size_t)(end - at));
    if (!settled) return;
    progress(now);
    run_.settled.fetch_add(settled, std::memory_order_relaxed);
    if (run_.in_window(now)) run_.confirmed_in_window.fetch_add(settled, std::memory_order_relaxed);
  }

  // Both return how many messages were settled, and leave `at` at the unfinished frame.
  uint64_t parse_confirms(Publisher& p, const uint8_t*& at, const uint8_t* end, uint64_t now) {
    uint64_t settled = 0;
    for (uint32_t size; (size_t)(end - at) >= kFrameOverhead; at += size + kFrameOverhead) {
      size = get32(at + 3);
      if ((size_t)(end - at) < size + kFrameOverhead) break;
      if (at[0] != kMethod) continue;
      const uint8_t* a = at + 11;
      uint32_t id = get32(at + 7);
      if (id == kBasicAck || id == kBasicNack) settled += settle(p, get64(a), a[8] & 1, id == kBasicNack, now);
      else if (id == kConnectionBlocked) p.blocked = true, run_.blocked++;
      else if (id == kConnectionUnblocked) p.blocked = false;
      else if (id == kConnectionClose || id == kChannelClose) run_.fail(close_reason(at + 7, size));
    }
    return settled;
  }

  uint64_t parse_outcomes(Publisher& p, const uint8_t*& at, const uint8_t* end, uint64_t now) {
    uint64_t settled = 0;
    for (uint32_t size; (size_t)(end - at) >= kHead10; at += size) {
      size = get32(at);
      if ((size_t)(end - at) < size) break;
      const uint8_t* body = at + at[4] * 4u;
      if (body == at + size) continue;
      uint8_t code = descriptor10(body);
      const uint8_t* list = value10(body);
      if (code == kFlow) p.sender.flow(list, p.next);
      else if (code == kDisposition) settled += outcome(p, Fields10(list), now);
      else if (code == kDetach || code == kEnd || code == kClose) run_.fail(reason10(body));
    }
    return settled;
  }

  uint64_t outcome(Publisher& p, Fields10 fields, uint64_t now) {
    uint64_t first = 0, last;
    fields.skip(1);
    fields.number(first);
    if (!fields.number(last)) last = first;
    fields.skip(1);
    const uint8_t* state = fields.next();
    if (!state) return run_.fail("a disposition without a state"), 0;
    bool refused = descriptor10(state) != kAccepted;
    first = Sender10::widened(p.watermark, first), last = Sender10::widened(p.watermark, last);
    if (last >= p.next || first > last) return run_.fail("an outcome of a message that was not published"), 0;
    if (first == p.watermark) return settle(p, last + 1, true, refused, now);
    uint64_t count = 0;
    for (uint64_t sequence = first; sequence <= last; sequence++) count += settle(p, sequence + 1, false, refused, now);
    return count;
  }

  // Delivery tags of confirms count from 1 on the channel, sequences from 0.
  uint64_t settle(Publisher& p, uint64_t tag, bool multiple, bool nack, uint64_t now) {
    if (!o_.confirm) return run_.fail("confirm on a channel that did not ask for confirms"), 0;
    if (tag == 0 && multiple) tag = p.next;
    if (tag == 0 || tag > p.next) return run_.fail("confirm of a message that was not published"), 0;
    uint64_t count = 0;
    bool measured = run_.in_window(now);
    auto one = [&](uint64_t sequence) {
      count++;
      uint64_t stamp = p.stamps[sequence & (p.stamps.size() - 1)];
      if (measured) run_.confirm_latency.add(now > stamp ? now - stamp : 0);
      if (nack) p.refused.test_and_set(sequence), run_.refused++;
    };
    if (multiple) {
      for (; p.watermark < tag; p.watermark++)
        if (!p.early.test(p.watermark)) one(p.watermark);
    } else if (!p.settled(tag - 1)) {
      one(tag - 1);
      if (tag - 1 == p.watermark) p.watermark++;
      else p.early.test_and_set(tag - 1);
    }
    while (p.early.test(p.watermark)) p.watermark++;
    return count;
  }

  void serve(Consumer& c, uint32_t events) {
    if (events & EPOLLOUT && c.waits_for_room) flush_acks(c);
    if (!(events & ~(uint32_t)EPOLLOUT)) return;
    ssize_t n = scratch_.read_behind(run_, c.fd, c.input);
    if (n < 0) return;
    parse_deliveries(c, (size_t)n);
    flush_acks(c);
  }

  void parse_deliveries(Consumer& c, size_t available) {
    if (!available) {  // first call: the rest of the set-up conversation
      available = c.input.size();
      scratch_.put(c.input);
    }
    uint64_t now = now_ns(), before = run_.ledger.received, run_stamp = 0, run_length = 0;
    bool measured = run_.in_window(now) && o_.publishers;
    auto record = [&] {
      if (run_length && measured) run_.latency.add(now > run_stamp ? now - run_stamp : 0, run_length);
    };
    auto arrived = [&](const uint8_t* body, size_t size) {
      uint64_t mark = get64(body), stamp;
      memcpy(&stamp, body + 8, 8);
      if (size != (size_t)o_.size || (size >= 24 && memcmp(body, body + size - 8, 8))) run_.ledger.corrupt++;
      if (stamp != run_stamp) record(), run_stamp = stamp, run_length = 0;
      run_length++;
      run_.ledger.enter(c.next, mark >> 48, mark & 0xffffffffffffull, c.again);
      if (!o_.auto_ack && ++c.unacked >= (uint64_t)o_.ack_every) c.acknowledge();
    };
    const uint8_t *at = scratch_.data(), *end = at + available;
    if (c.amqp10) parse_transfers(c, at, end, arrived);
    else parse_contents(c, at, end, arrived);
    if (run_.stop) return;
    record();
    c.input.assign((const char*)at, (size_t)(end - at));
    uint64_t count = run_.ledger.received - before;
    if (!count) return;
    if (run_.received == 0 && !o_.publishers) run_.first_progress = now;
    progress(now);
    run_.received.fetch_add(count, std::memory_order_relaxed);
    if (run_.in_window(now)) run_.received_in_window.fetch_add(count, std::memory_order_relaxed);
  }

  template <class Arrived>
  void parse_contents(Consumer& c, const uint8_t*& at, const uint8_t* end, const Arrived& arrived) {
    for (uint32_t size; (size_t)(end - at) >= kFrameOverhead; at += size + kFrameOverhead) {
      size = get32(at + 3);
      if ((size_t)(end - at) < size + kFrameOverhead) break;
      const uint8_t* p = at + 7;
      if (at[0] == kBody) {
        if (c.body.empty() && size == c.body_left && size >= 16) {
          arrived(p, size);
        } else {
          c.body.append((const char*)p, size);
          if (c.body.size() < c.body_left) continue;
          if (c.body.size() >= 16) arrived((const uint8_t*)c.body.data(), c.body.size());
          else run_.ledger.corrupt++;
          c.body.clear();
        }
      } else if (at[0] == kHeader) {
        c.body_left = get64(p + 4);
        if (!c.body_left) run_.ledger.corrupt++;
      } else if (at[0] == kMethod) {
        uint32_t id = get32(p);
        if (id == kBasicDeliver) {
          const uint8_t* tag = p + 5 + p[4];
          uint64_t value = get64(tag);
          run_.ledger.bad_tags += value != c.last_tag + 1;
          c.last_tag = value;
          c.again = tag[8];
        } else if (id == kConnectionClose || id == kChannelClose) {
          return run_.fail(close_reason(p, size));
        } else if (id == kBasicCancel) {
          return run_.fail("consumer cancelled by the broker");
        }
      }
    }
  }

  template <class Arrived>
  void parse_transfers(Consumer& c, const uint8_t*& at, const uint8_t* end, const Arrived& arrived) {
    for (uint32_t size; (size_t)(end - at) >= kHead10; at += size) {
      size = get32(at);
      if ((size_t)(end - at) < size) break;
      const uint8_t* body = at + at[4] * 4u;
      if (body == at + size) continue;
      uint8_t code = descriptor10(body);
      if (code == kDetach || code == kEnd || code == kClose) return run_.fail(reason10(body));
      if (code != kTransfer) continue;
      c.receiver.frames++;
      Fields10 fields(value10(body));
      uint64_t id;
      fields.skip(1);
      if (fields.number(id)) run_.ledger.bad_tags += (uint32_t)id != (uint32_t)c.receiver.deliveries;
      fields.skip(3);
      bool more = fields.flag();
      if (more || !c.body.empty()) {
        c.body.append((const char*)fields.end, (const char*)at + size);
        if (more) continue;
        message(c, (const uint8_t*)c.body.data(), (const uint8_t*)c.body.data() + c.body.size(), arrived);
        c.body.clear();
      } else {
        message(c, fields.end, at + size, arrived);
      }
      if (c.receiver.credit_until - c.receiver.deliveries <= (uint64_t)o_.prefetch / 2) c.acks += c.receiver.flow((uint64_t)o_.prefetch);
    }
  }

  // The sections of a message: whether it was handed out before, and its one data section.
  template <class Arrived>
  void message(Consumer& c, const uint8_t* at, const uint8_t* end, const Arrived& arrived) {
    c.receiver.deliveries++;
    c.again = false;
    for (; at < end; at = behind10(at)) {
      uint8_t section = descriptor10(at);
      const uint8_t* value = value10(at);
      if (section == 0x70) {
        Fields10 fields(value);
        fields.skip(3);
        c.again = !fields.flag();
      } else if (section == 0x75) {
        bool small = *value == 0xa0;
        size_t size = small ? value[1] : get32(value + 1);
        if (size >= 16) return arrived(value + (small ? 2 : 5), size);
      }
    }
    run_.ledger.corrupt++;
  }

  void flush_acks(Consumer& c) {
    if (c.acks.empty()) return;
    ssize_t n = send(c.fd, c.acks.data(), c.acks.size(), MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return run_.fail(std::string("consumer lost: ") + strerror(errno));
    if (n > 0) c.acks.erase(0, (size_t)n);
    if (c.acks.empty() != c.waits_for_room) return;
    c.waits_for_room = !c.acks.empty();
    watch(ep_, EPOLL_CTL_MOD, c.fd, (uint64_t)(&c - consumers.data()) << 1 | 1, c.waits_for_room);
  }
};
