// Calls: callers that publish requests by key and wait for answers, and workers that consume the keys' queues and answer.
//
//   caller --exchange, routing key KEY_PREFIX<k>--> queue QUEUE<k> --> worker --default exchange, reply_to--> caller
//
// A caller has so many calls outstanding (--window), goes through the keys in turn, and is answered by direct reply-to,
// or in an exclusive queue of its own. A worker connection has several channels, each with a consumer for some of the
// keys; what one read has brought is answered, then acknowledged with one basic.ack a channel.
//
// A body is that of a run (amqpload.cc) with the caller for the publisher, and an answer's is its request's. The
// correlation id is the body's first eight bytes in hexadecimal digits. Requests are counted as messages of a run are
// (tally.h), in order within caller and key; one in another key's queue is corrupt. Of the answers, one is
//   a duplicate  when its call was answered before,
//   corrupt      when it is not the body of a call of this caller, or not that of its correlation id,
//   refused      when the broker gives it (type `error`),
//   lost         when its call was published and it did not come.
#pragma once
#include <sys/epoll.h>

#include <map>
#include <vector>

#include "run.h"

// Where the properties of a content header are that a call needs; shortstrs with their length. nullptr: not there.
struct Properties {
  const uint8_t *headers = nullptr, *correlation = nullptr, *reply_to = nullptr, *type = nullptr;

  // Of a header's payload.
  explicit Properties(const uint8_t* payload) {
    uint16_t flags = get16(payload + 12);
    const uint8_t* at = payload + 14;
    auto text = [&](uint16_t flag) {
      const uint8_t* found = flags & flag ? at : nullptr;
      if (found) at += 1 + *at;
      return found;
    };
    text(0x8000), text(0x4000);  // content-type, content-encoding
    if (flags & 0x2000) headers = at, at += 4 + get32(at);
    if (flags & 0x1000) at++;  // delivery-mode
    if (flags & 0x0800) at++;  // priority
    correlation = text(0x0400);
    reply_to = text(0x0200);
    text(0x0100), text(0x0080);     // expiration, message-id
    if (flags & 0x0040) at += 8;  // timestamp
    type = text(0x0020);
  }

  static std::string of(const uint8_t* shortstr) {
    return shortstr ? std::string((const char*)shortstr + 1, *shortstr) : std::string();
  }

  // Why the broker refused: the header x-status.
  std::string status() const {
    static const std::string name("\x08x-status", 9);
    if (!headers) return "";
    std::string table((const char*)headers + 4, get32(headers));
    size_t at = table.find(name);
    if (at == std::string::npos || at + name.size() + 5 > table.size()) return "";
    return table.substr(at + name.size() + 5, get32((const uint8_t*)table.data() + at + name.size() + 1));
  }
};

constexpr size_t kHexDigits = 16;

inline void put_hex(uint8_t* p, uint64_t v) {
  for (int shift = 60; shift >= 0; shift -= 4) *p++ = (uint8_t)"0123456789abcdef"[v >> shift & 15];
}

inline uint8_t* grown(std::string& s, size_t by) {
  s.resize(s.size() + by);
  return (uint8_t*)s.data() + s.size() - by;
}

// A connection, and what its channel has of a content that is not whole yet.
struct Peer {
  struct Content {
    uint64_t tag = 0, size = 0;
    long key = 0;        // of a request: the number in its consumer's tag
    bool again = false, error = false;
    std::string correlation, reply_to;
    bool unacked = false;  // something of this channel is
  };
  int fd;
  bool worker, waits_for_room = false, blocked = false;
  std::string input, output;
  std::vector<Content> channels;  // by number; 0 has none

  Peer(Link& link, bool worker_, size_t channels_)
      : fd(link.fd), worker(worker_), input(link.input), channels(channels_ + 1) {}
};

struct Caller : Peer {
  uint64_t id, next = 0, answered = 0;
  Bitmap seen;
  std::string content;  // finished header and body of a request; correlation id and body are patched
  size_t correlation_at, body_at;

  Caller(Link& link, const Options& o, uint64_t id_, const std::string& reply_to) : Peer(link, false, 1), id(id_) {
    Writer header;
    header.u16(60).u16(0).u64((uint64_t)o.size).u16(0x1600).u8(o.persistent ? 2 : 1);
    correlation_at = 7 + header.bytes.size() + 1;
    header.shortstr(std::string(kHexDigits, '0')).shortstr(reply_to);
    content = frame(kHeader, 1, header.bytes);
    body_at = content.size() + 7;
    content += frame(kBody, 1, std::string((size_t)o.size, 'x'));
  }
};

class Calls {
 public:
  uint64_t duplicates = 0, corrupt = 0, refused = 0;  // of answers
  std::string first_refusal;

  explicit Calls(Run& run) : run_(run), o_(run.o) {
    for (long k = 0; k < o_.keys; k++) {
      std::string key = o_.key_prefix + std::to_string(k);
      publishes_.push_back(method_frame(1, kBasicPublish, Writer().u16(0).shortstr(o_.exchange).shortstr(key).u8(0).bytes));
    }
    next_.assign((size_t)o_.keys, std::vector<uint64_t>((size_t)o_.publishers, 0));
  }

  // Workers first: a request must find its queue.
  void dial() {
    for (long i = 0; i < o_.consumers; i++) dial_worker(i);
    for (long i = 0; i < o_.publishers; i++) dial_caller(i);
  }

  void turn_until_done() {
    ep_ = epoll_create1(EPOLL_CLOEXEC);
    each([&](Peer& p, uint64_t key) { watch(ep_, EPOLL_CTL_ADD, p.fd, key, false); });
    while (!run_.stop) {
      uint64_t now = now_ns();
      if (run_.publishing && now >= run_.measure_to) run_.publishing = false;
      for (size_t i = 0; i < callers_.size(); i++)
        if (ask(callers_[i], now)) flush(callers_[i], i << 1);
      decide(now);
      epoll_event events[128];
      int n = epoll_wait(ep_, events, 128, 5);
      for (int i = 0; i < n && !run_.stop; i++) {
        uint64_t key = events[i].data.u64;
        if (key & 1) serve(workers_[key >> 1], key, events[i].events);
        else serve(callers_[key >> 1], key, events[i].events);
      }
    }
    ::close(ep_);
  }

  void close_all() {
    bool orderly = run_.error.empty();
    each([&](Peer& p, uint64_t) { orderly ? close_after(Link(), p.fd, p.output) : (void)::close(p.fd); });
  }

  uint64_t lost() const {
    uint64_t count = 0;
    for (auto& c : callers_) count += c.next - c.answered;
    return count;
  }

 private:
  Run& run_;
  const Options& o_;
  Scratch scratch_;
  int ep_ = -1;
  uint64_t complete_at_ = 0;
  std::vector<Caller> callers_;
  std::vector<Peer> workers_;
  std::vector<std::string> publishes_;       // by key, finished basic.publish frames
  std::vector<std::vector<uint64_t>> next_;  // by key and caller: the lowest sequence that is in order

  template <class Seen>
  void each(const Seen& seen) {
    for (size_t i = 0; i < callers_.size(); i++) seen(callers_[i], i << 1);
    for (size_t i = 0; i < workers_.size(); i++) seen(workers_[i], i << 1 | 1);
  }

  void dial_worker(long number) {
    Link link = dialled(o_, o_.consumer_ports[(size_t)number % o_.consumer_ports.size()]);
    for (long channel = 1; channel <= o_.channels; channel++) {
      if (channel > 1) link.call((int)channel, kChannelOpen, Writer().shortstr("").bytes, kChannelOpenOk);
      link.call((int)channel, kBasicQos, Writer().u32(0).u16((unsigned)o_.prefetch).u8(0).bytes, kBasicQosOk);
    }
    long keys = (o_.keys - number + o_.consumers - 1) / o_.consumers;
    in_batches(link, keys, kBasicConsumeOk, [&](long i) {
      std::string key = std::to_string(number + i * o_.consumers);
      std::string consume = Writer().u16(0).shortstr(o_.queue + key).shortstr(key).u8(0).longstr("").bytes;
      return method_frame(1 + (int)(i % o_.channels), kBasicConsume, consume);
    });
    workers_.emplace_back(link, true, (size_t)o_.channels);
  }

  void dial_caller(long number) {
    Link link = dialled(o_, o_.publisher_ports[(size_t)number % o_.publisher_ports.size()]);
    if ((uint64_t)o_.size + kFrameOverhead > link.frame_max) throw std::runtime_error("the body must fit into one frame");
    std::string answers = "amq.rabbitmq.reply-to";
    if (o_.reply_queues) {
      std::string exclusive = Writer().u16(0).shortstr("").u8(4).longstr("").bytes;
      std::string ok = link.call(1, kQueueDeclare, exclusive, kQueueDeclareOk);
      answers = Properties::of((const uint8_t*)ok.data() + 4);
    }
    link.call(1, kBasicConsume, Writer().u16(0).shortstr(answers).shortstr("c").u8(2).longstr("").bytes, kBasicConsumeOk);
    callers_.emplace_back(link, o_, (uint64_t)number, answers);
  }

  // Which key a call has: callers begin at different ones.
  long key_of(uint64_t caller, uint64_t sequence) const {
    return (long)((caller * (uint64_t)o_.keys / (uint64_t)o_.publishers + sequence) % (uint64_t)o_.keys);
  }

  void decide(uint64_t now) {
    bool all = o_.count && run_.published >= (uint64_t)(o_.count * o_.publishers);
    if (all) run_.publishing = false;
    bool complete = !run_.publishing && run_.settled >= run_.published;
    if (!complete) complete_at_ = 0;
    else if (!complete_at_) complete_at_ = now;
    else if (now - complete_at_ > 200000000) run_.stop = true;  // in which a duplicate could have shown itself
    if (!complete && now > run_.last_progress && now - run_.last_progress > (uint64_t)(o_.drain_s * 1e9))
      run_.fail("no progress for " + std::to_string((int)o_.drain_s) + " s");
  }

  // Requests for which the window has room. False: there was nothing to ask.
  bool ask(Caller& c, uint64_t now) {
    if (!run_.publishing || c.waits_for_room || c.blocked) return false;
    uint64_t n = (uint64_t)o_.window - (c.next - c.answered);
    if (o_.count) n = std::min(n, (uint64_t)o_.count - c.next);
    for (uint64_t i = 0; i < n; i++, c.next++) {
      c.output += publishes_[(size_t)key_of(c.id, c.next)];
      uint8_t* content = grown(c.output, c.content.size());
      memcpy(content, c.content.data(), c.content.size());
      uint64_t mark = c.id << 48 | c.next;
      put_hex(content + c.correlation_at, mark);
      put64(content + c.body_at, mark);
      memcpy(content + c.body_at + 8, &now, 8);
      if (o_.size >= 24) put64(content + c.body_at + (size_t)o_.size - 8, mark);
    }
    run_.published.fetch_add(n, std::memory_order_relaxed);
    if (n && run_.in_window(now)) run_.published_in_window.fetch_add(n, std::memory_order_relaxed);
    return n;
  }

  template <class Any>
  void serve(Any& p, uint64_t key, uint32_t events) {
    if (events & EPOLLOUT) flush(p, key);
    if (!(events & ~(uint32_t)EPOLLOUT)) return;
    ssize_t n = scratch_.read_behind(run_, p.fd, p.input);
    if (n < 0) return;
    const uint8_t *at = scratch_.data(), *end = at + n;
    parse(p, at, end, now_ns());
    p.input.assign((const char*)at, (size_t)(end - at));
    for (size_t channel = 1; p.worker && channel < p.channels.size(); channel++) {
      if (p.channels[channel].unacked) append_ack(p.output, (int)channel, p.channels[channel].tag);
      p.channels[channel].unacked = false;
    }
    if (!p.waits_for_room) flush(p, key);
  }

  // Leaves `at` at the unfinished frame.
  template <class Any>
  void parse(Any& p, const uint8_t*& at, const uint8_t* end, uint64_t now) {
    for (uint32_t size; (size_t)(end - at) >= kFrameOverhead; at += size + kFrameOverhead) {
      size = get32(at + 3);
      if ((size_t)(end - at) < size + kFrameOverhead) return;
      int channel = get16(at + 1);
      const uint8_t* payload = at + 7;
      Peer::Content& content = p.channels[std::min((size_t)channel, p.channels.size() - 1)];
      if (at[0] == kMethod) {
        method(p, content, payload, size);
      } else if (at[0] == kHeader) {
        Properties properties(payload);
        content.size = get64(payload + 4);
        content.correlation = Properties::of(properties.correlation);
        content.reply_to = Properties::of(properties.reply_to);
        content.error = Properties::of(properties.type) == "error";
        if (content.error) refuse(p, content, properties, now);
      } else if (at[0] == kBody) {
        arrived(p, channel, content, payload, size, now);
      }
    }
  }

  void method(Peer& p, Peer::Content& content, const uint8_t* payload, uint32_t size) {
    uint32_t id = get32(payload);
    if (id == kBasicDeliver) {
      const uint8_t* tag = payload + 5 + payload[4];
      run_.ledger.bad_tags += p.worker && get64(tag) != content.tag + 1;
      content.tag = get64(tag);
      content.again = tag[8];
      if (p.worker) content.key = atol(std::string((const char*)payload + 5, payload[4]).c_str());
    } else if (id == kConnectionBlocked) {
      p.blocked = true, run_.blocked++;
    } else if (id == kConnectionUnblocked) {
      p.blocked = false;
    } else if (id == kConnectionClose || id == kChannelClose) {
      run_.fail(close_reason(payload, size));
    } else if (id == kBasicCancel) {
      run_.fail("consumer cancelled by the broker");
    }
  }

  // The call that a correlation id names. False: none of this form.
  static bool named(const std::string& correlation, uint64_t& mark) {
    if (correlation.size() != kHexDigits || correlation.find_first_not_of("0123456789abcdef") != std::string::npos) return false;
    mark = strtoull(correlation.c_str(), nullptr, 16);
    return true;
  }

  // Whether it is whole, and says the same as the correlation id.
  bool sound(const Peer::Content& content, const uint8_t* body, uint32_t size, uint64_t& mark) const {
    return named(content.correlation, mark) && content.size == size && size == (uint32_t)o_.size && get64(body) == mark &&
           (size < 24 || get64(body + size - 8) == mark);
  }

  // A request.
  void arrived(Peer& p, int channel, Peer::Content& content, const uint8_t* body, uint32_t size, uint64_t now) {
    uint64_t mark = 0;
    content.unacked = true;
    run_.last_progress.store(now, std::memory_order_relaxed);
    bool good = sound(content, body, size, mark);
    uint64_t caller = mark >> 48, sequence = mark & 0xffffffffffffull;
    if (!good || content.key < 0 || content.key >= o_.keys || key_of(caller, sequence) != content.key) {
      run_.ledger.corrupt++;
      return;
    }
    run_.ledger.enter(next_[(size_t)content.key], (size_t)caller, sequence, content.again);
    answer(p.output, channel, content, body, size);
  }

  static void answer(std::string& out, int channel, const Peer::Content& content, const uint8_t* body, uint32_t size) {
    size_t arguments = 4 + 2 + 1 + 1 + content.reply_to.size() + 1, header = 14 + 1 + 1 + kHexDigits;
    uint8_t* at = grown(out, arguments + header + size + 3 * kFrameOverhead);
    auto begin = [&](uint8_t type, size_t length) {
      *at++ = type, *at++ = (uint8_t)(channel >> 8), *at++ = (uint8_t)channel;
      put32(at, (uint32_t)length), at += 4;
    };
    begin(kMethod, arguments);
    put32(at, kBasicPublish), at += 4;
    *at++ = 0, *at++ = 0, *at++ = 0;  // ticket, the default exchange
    *at++ = (uint8_t)content.reply_to.size();
    memcpy(at, content.reply_to.data(), content.reply_to.size()), at += content.reply_to.size();
    *at++ = 0, *at++ = kFrameEnd;
    begin(kHeader, header);
    put32(at, 60u << 16), at += 4;
    put64(at, size), at += 8;
    *at++ = 0x14, *at++ = 0, *at++ = 1;  // delivery-mode 1, correlation-id
    *at++ = kHexDigits;
    memcpy(at, content.correlation.data(), kHexDigits), at += kHexDigits;
    *at++ = kFrameEnd;
    begin(kBody, size);
    memcpy(at, body, size), at += size;
    *at = kFrameEnd;
  }

  // An answer.
  void arrived(Caller& c, int, Peer::Content& content, const uint8_t* body, uint32_t size, uint64_t now) {
    uint64_t mark = 0, stamp;
    if (!sound(content, body, size, mark)) {
      corrupt++;
      return;
    }
    memcpy(&stamp, body + 8, 8);
    if (settle(c, mark, now) && run_.in_window(now)) run_.latency.add(now > stamp ? now - stamp : 0);
  }

  // False: it was before, or is none of this caller's.
  bool settle(Caller& c, uint64_t mark, uint64_t now) {
    uint64_t sequence = mark & 0xffffffffffffull;
    if (mark >> 48 != c.id || sequence >= c.next) return corrupt++, false;
    if (c.seen.test_and_set(sequence)) return duplicates++, false;
    c.answered++;
    run_.last_progress.store(now, std::memory_order_relaxed);
    run_.settled.fetch_add(1, std::memory_order_relaxed);
    if (run_.in_window(now)) run_.confirmed_in_window.fetch_add(1, std::memory_order_relaxed);
    return true;
  }

  void refuse(Peer&, const Peer::Content&, const Properties&, uint64_t) { run_.ledger.corrupt++; }

  void refuse(Caller& c, const Peer::Content& content, const Properties& properties, uint64_t now) {
    uint64_t mark = 0;
    if (!named(content.correlation, mark)) corrupt++;
    else if (settle(c, mark, now) && !refused++) first_refusal = properties.status();
  }

  void flush(Peer& p, uint64_t key) {
    if (p.output.empty()) return;
    ssize_t n = send(p.fd, p.output.data(), p.output.size(), MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return run_.fail(std::string("connection lost: ") + strerror(errno));
    if (n > 0) p.output.erase(0, (size_t)n);
    if (p.output.empty() != p.waits_for_room) return;
    p.waits_for_room = !p.output.empty();
    watch(ep_, EPOLL_CTL_MOD, p.fd, key, p.waits_for_room);
  }
};
