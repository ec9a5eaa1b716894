// Clients that live through a failover, as a careful application does: a thread for each connection, which dials the
// next node when its own is gone, publishes again what was not confirmed, and consumes on. What is measured is how
// long each of them was without progress (a confirm, a delivery); what is checked is that no confirmed message is lost.
//
// A gap runs from one progress to the next, so one that a fault causes begins before it. Times are those of
// CLOCK_MONOTONIC: whoever kills the nodes reads the same clock and knows which gap belongs to which fault.
#pragma once
#include <fcntl.h>
#include <poll.h>

#include <atomic>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "run.h"

struct Gap {
  bool publisher;
  int id;
  uint64_t from, to;
};

class Survivors {
 public:
  explicit Survivors(const Options& o)
      : o_(o), ledger_(o.publishers ? (size_t)o.publishers : 1), resent_(ledger_.seen.size()),
        confirmed_(ledger_.seen.size()), published_(ledger_.seen.size(), 0) {}

  std::atomic<bool> publishing{true};

  // Runs until `publishing` has become false (or --seconds are over, or each has published --count messages) and all
  // that was confirmed has arrived.
  void run() {
    if (o_.declare) declare();
    started_ = last_progress_ = now_ns();
    std::vector<std::thread> threads;
    for (int i = 0; i < o_.consumers; i++) threads.emplace_back([this, i] { consume(i); });
    while (ready_ < o_.consumers && now_ns() - started_ < (uint64_t)o_.timeout_s * 1000000000) pause_ms(5);
    started_ = last_progress_ = now_ns();
    for (int i = 0; i < o_.publishers; i++) threads.emplace_back([this, i] { publish(i); });
    printf("running\n");
    fflush(stdout);
    while (!complete()) pause_ms(20);
    pause_ms(200);  // in which a duplicate can show itself
    over_ = true;
    for (auto& thread : threads) thread.join();
  }

  bool report() {
    uint64_t published = 0, confirmed = 0, lost = 0;
    for (size_t p = 0; p < published_.size(); p++) {
      published += published_[p];
      for (uint64_t s = 0; s < published_[p]; s++) {
        confirmed += confirmed_[p].test(s);
        lost += confirmed_[p].test(s) && !ledger_.seen[p].test(s) && o_.consumers;
      }
    }
    bool clean = !lost && !duplicates_ && !misordered_ && !ledger_.corrupt && confirmed == published;
    std::string text = "{\"clean\":" + std::string(clean ? "true" : "false");
    auto add = [&](const char* name, uint64_t value) { text += ",\"" + std::string(name) + "\":" + std::to_string(value); };
    add("published", published), add("confirmed", confirmed), add("unconfirmed", published - confirmed);
    add("received", received_), add("lost", lost), add("duplicates", duplicates_), add("misordered", misordered_);
    add("corrupt", ledger_.corrupt), add("redelivered", redelivered_), add("twice_published", twice_published_);
    add("nacked", nacked_), add("reconnects", reconnects_), add("started_ns", started_), add("ended_ns", now_ns());
    text += ",\"latency_us\":" + latency_.json_us() + ",\"gaps\":[";
    for (size_t i = 0; i < gaps_.size(); i++)
      text += std::string(i ? "," : "") + "{\"publisher\":" + (gaps_[i].publisher ? "true" : "false") + ",\"id\":" +
              std::to_string(gaps_[i].id) + ",\"from_ns\":" + std::to_string(gaps_[i].from) + ",\"to_ns\":" +
              std::to_string(gaps_[i].to) + "}";
    printf("%s]}\n", text.c_str());
    return clean;
  }

 private:
  const Options& o_;
  std::mutex lock_;  // of all below
  Ledger ledger_;
  std::vector<Bitmap> resent_, confirmed_;
  std::vector<uint64_t> published_;
  std::vector<Gap> gaps_;
  Histogram latency_;
  uint64_t received_ = 0, duplicates_ = 0, misordered_ = 0, redelivered_ = 0, twice_published_ = 0, nacked_ = 0;
  std::atomic<uint64_t> reconnects_{0}, last_progress_{0};
  std::atomic<long> ready_{0}, done_publishers_{0};
  std::atomic<bool> over_{false};
  uint64_t started_ = 0;

  static void pause_ms(int ms) { poll(nullptr, 0, ms); }

  bool complete() {
    if (publishing && now_ns() - started_ > (uint64_t)(o_.seconds * 1e9)) publishing = false;
    uint64_t last = last_progress_;  // read first: what another thread writes after the clock was read is later than that
    if (now_ns() - last > (uint64_t)(o_.drain_s * 1e9)) return true;
    if (done_publishers_ < o_.publishers) return false;
    std::lock_guard<std::mutex> held(lock_);
    for (size_t p = 0; o_.consumers && p < published_.size(); p++)
      for (uint64_t s = 0; s < published_[p]; s++)
        if (confirmed_[p].test(s) && !ledger_.seen[p].test(s)) return false;
    return true;
  }

  void declare() {
    Link link;
    link.dial(o_.host, (int)o_.consumer_ports[0], o_.user, o_.password, o_.vhost, (int)o_.timeout_s);
    for (int i = 0; i < o_.queues; i++) link.declare(queue_of(i), false, o_.durable, table_entries(o_.args));
    link.close_in_order();
  }

  // A connection to the first node that takes one, beginning with that of the client's number.
  bool dial(Link& link, const std::vector<long>& ports, size_t& at, const std::function<void(Link&)>& prepare) {
    for (bool first = true; !over_; first = false) {
      try {
        link = Link();
        link.dial(o_.host, (int)ports[at % ports.size()], o_.user, o_.password, o_.vhost, (int)o_.timeout_s);
        prepare(link);
        return true;
      } catch (const std::runtime_error&) {
        if (link.fd >= 0) ::close(link.fd);
        at++;
        if (!first) pause_ms(10);
      }
    }
    return false;
  }

  std::string queue_of(int i) const { return o_.queues > 1 ? o_.queue + std::to_string(i % o_.queues) : o_.queue; }

  void progressed(uint64_t now, uint64_t& last, bool publisher, int id) {
    if (now - last > (uint64_t)(o_.gap_ms * 1e6)) gaps_.push_back({publisher, id, last, now});
    last = now;
    last_progress_ = now;
  }

  // Reads what is there within `wait_ms` and hands every whole frame to `take`; throws when the connection is gone.
  static void read_frames(Link& link, int wait_ms, const std::function<void(int, const uint8_t*, uint32_t)>& take) {
    pollfd p{link.fd, POLLIN, 0};
    if (poll(&p, 1, wait_ms) <= 0) return;
    char chunk[65536];
    ssize_t n = recv(link.fd, chunk, sizeof chunk, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN)) throw std::runtime_error("gone");
    if (n > 0) link.input.append(chunk, (size_t)n);
    size_t at = 0;
    while (link.input.size() - at >= kFrameOverhead) {
      const uint8_t* head = (const uint8_t*)link.input.data() + at;
      uint32_t size = get32(head + 3);
      if (link.input.size() - at < kFrameOverhead + size) break;
      if (head[0] == kMethod) {
        uint32_t id = get32(head + 7);
        if (id == kConnectionClose || id == kChannelClose || id == kBasicCancel) throw std::runtime_error("closed");
      }
      take(head[0], head + 7, size);
      at += kFrameOverhead + size;
    }
    link.input.erase(0, at);
  }

  void publish(int id) {
    std::string method = method_frame(1, kBasicPublish, Writer().u16(0).shortstr("").shortstr(queue_of(id)).u8(0).bytes);
    method += frame(kHeader, 1, Writer().u16(60).u16(0).u64((uint64_t)o_.size).u16(0x1000).u8(o_.persistent ? 2 : 1).bytes);
    std::deque<uint64_t> unconfirmed;  // by publish order; those that were said again stand at their old place
    uint64_t next = 0, last = now_ns();
    double rate = o_.rate > 0 ? o_.rate / (double)o_.publishers : 0;
    uint64_t most = o_.count ? (uint64_t)o_.count : UINT64_MAX;
    size_t at = (size_t)id;
    Link link;
    for (bool again = false; !over_; again = true) {
      if (!dial(link, o_.publisher_ports, at, [](Link& l) { l.call(1, kConfirmSelect, Writer().u8(0).bytes, kConfirmSelectOk); })) return;
      reconnects_ += again;
      std::vector<uint64_t> sequence_of_tag;  // index: tag - 1
      size_t answered = 0;
      std::vector<bool> settled;
      std::string out;
      auto send = [&](uint64_t sequence) {
        std::string body((size_t)o_.size, 'x');
        uint64_t stamp = now_ns();
        put64((uint8_t*)&body[0], (uint64_t)id << 48 | sequence);
        memcpy(&body[8], &stamp, 8);
        if (o_.size >= 24) memcpy(&body[(size_t)o_.size - 8], &body[0], 8);
        out += method;
        out += frame(kBody, 1, body);
        sequence_of_tag.push_back(sequence);
        settled.push_back(false);
      };
      std::deque<uint64_t> repeat(unconfirmed);
      uint64_t repeat_at = 0;  // after a nack a moment passes: a broker that refuses is not helped by a storm
      auto answer = [&](size_t index, bool ack) {
        if (index >= settled.size() || settled[index]) return;
        settled[index] = true;
        uint64_t sequence = sequence_of_tag[index];
        if (!ack) {
          nacked_++;
          repeat.push_back(sequence);
          repeat_at = now_ns() + 10000000;
        } else if (!confirmed_[(size_t)id].test_and_set(sequence)) {
          for (auto i = unconfirmed.begin(); i != unconfirmed.end(); i++)
            if (*i == sequence) { unconfirmed.erase(i); break; }
        }
      };
      try {
        for (;;) {
          if (over_) break;
          uint64_t now = now_ns();
          for (; !repeat.empty() && now >= repeat_at && sequence_of_tag.size() - answered < (size_t)o_.window; repeat.pop_front()) {
            std::lock_guard<std::mutex> held(lock_);
            resent_[(size_t)id].test_and_set(repeat.front());
            send(repeat.front());
          }
          uint64_t due = rate > 0 ? (uint64_t)((double)(now - started_) / 1e9 * rate) : UINT64_MAX;
          for (int burst = 0; burst < 200 && publishing && next < std::min(due, most) && unconfirmed.size() < (size_t)o_.window; burst++) {
            unconfirmed.push_back(next);
            send(next++);
          }
          if (!out.empty()) {
            { std::lock_guard<std::mutex> held(lock_); published_[(size_t)id] = next; }
            link.send_all(out);
            out.clear();
          }
          if ((!publishing || next >= most) && unconfirmed.empty()) break;
          read_frames(link, 1, [&](int kind, const uint8_t* p, uint32_t) {
            if (kind != kMethod || (get32(p) != kBasicAck && get32(p) != kBasicNack)) return;
            bool ack = get32(p) == kBasicAck;
            uint64_t tag = get64(p + 4);
            std::lock_guard<std::mutex> held(lock_);
            for (size_t i = p[12] & 1 ? answered : tag - 1; i < tag; i++) answer(i, ack);
            while (answered < settled.size() && settled[answered]) answered++;
            if (ack) progressed(now_ns(), last, true, id);
          });
        }
        done_publishers_++;
        link.close_in_order();
        return;
      } catch (const std::runtime_error&) {
        ::close(link.fd);
        at++;
      }
    }
  }

  void consume(int id) {
    uint64_t last = now_ns();
    std::vector<uint64_t> next(ledger_.seen.size(), 0);
    size_t at = (size_t)id;
    Link link;
    for (bool again = false; !over_; again = true) {
      if (!dial(link, o_.consumer_ports, at, [&](Link& l) {
            l.call(1, kBasicQos, Writer().u32(0).u16((unsigned)o_.prefetch).u8(0).bytes, kBasicQosOk);
            l.call(1, kBasicConsume, Writer().u16(0).shortstr(queue_of(id)).shortstr("c").u8(0).longstr("").bytes, kBasicConsumeOk);
          })) return;
      reconnects_ += again;
      if (!again) ready_++;
      uint64_t tag = 0, acknowledged = 0;
      bool flagged = false;
      try {
        while (!over_) {
          read_frames(link, 5, [&](int kind, const uint8_t* p, uint32_t size) {
            if (kind == kMethod && get32(p) == kBasicDeliver) {
              const uint8_t* where = p + 5 + p[4];
              tag = get64(where);
              flagged = where[8];
            } else if (kind == kBody) {
              uint64_t now = now_ns(), stamp;
              memcpy(&stamp, p + 8, 8);
              std::lock_guard<std::mutex> held(lock_);
              arrived(next, p, size, flagged, now, stamp);
              progressed(now, last, false, id);
            }
          });
          if (tag > acknowledged) {
            std::string ack;
            append_ack(ack, 1, tag);
            link.send_all(ack);
            acknowledged = tag;
          }
        }
        link.close_in_order();
        return;
      } catch (const std::runtime_error&) {
        ::close(link.fd);
        at++;
      }
    }
  }

  // What was published twice, because its first confirm did not come, may arrive twice without the flag, and late.
  void arrived(std::vector<uint64_t>& next, const uint8_t* body, uint32_t size, bool flagged, uint64_t now, uint64_t stamp) {
    received_++;
    redelivered_ += flagged;
    uint64_t mark = get64(body), sequence = mark & ((1ull << 48) - 1);
    size_t publisher = (size_t)(mark >> 48);
    if (size != (uint32_t)o_.size || publisher >= ledger_.seen.size() || (size >= 24 && memcmp(body, body + size - 8, 8))) {
      ledger_.corrupt++;
      return;
    }
    bool resent = resent_[publisher].test(sequence);
    if (ledger_.seen[publisher].test_and_set(sequence)) {
      twice_published_ += !flagged && resent;
      duplicates_ += !flagged && !resent;
      return;
    }
    latency_.add(now - stamp);
    if (sequence < next[publisher]) misordered_ += !flagged && !resent;
    else next[publisher] = sequence + 1;
  }
};
