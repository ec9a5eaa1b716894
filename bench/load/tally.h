// What a run counts: latencies in a histogram of fixed size, and the ledger that says for every publisher which
// of its messages arrived, how often, and in which order.
#pragma once
#include <stdint.h>

#include <algorithm>
#include <string>
#include <vector>

// Counts by value with at most 3.2 % error: 32 linear steps in each power of two.
class Histogram {
 public:
  void add(uint64_t value, uint64_t times = 1) {
    count_ += times;
    max_ = std::max(max_, value);
    int shift = value < 64 ? 0 : 58 - __builtin_clzll(value);  // value >> shift lies in 32..63 beyond the first 64
    buckets_[(size_t)shift * 64 + (value >> shift)] += times;
  }

  uint64_t quantile(double q) const {
    uint64_t target = (uint64_t)(q * (double)count_), seen = 0;
    for (size_t i = 0; i < buckets_.size(); i++)
      if ((seen += buckets_[i]) > target) return std::min(max_, (uint64_t)(i % 64) << (i / 64));
    return max_;
  }

  std::string json_us() const {
    char text[200];
    snprintf(text, sizeof text, "{\"count\":%lu,\"p50\":%.1f,\"p95\":%.1f,\"p99\":%.1f,\"p999\":%.1f,\"max\":%.1f}",
             (unsigned long)count_, (double)quantile(.5) / 1e3, (double)quantile(.95) / 1e3,
             (double)quantile(.99) / 1e3, (double)quantile(.999) / 1e3, (double)max_ / 1e3);
    return text;
  }

 private:
  std::vector<uint64_t> buckets_ = std::vector<uint64_t>(60 * 64, 0);
  uint64_t count_ = 0, max_ = 0;
};

// A set of sequence numbers that grows as needed.
class Bitmap {
 public:
  bool test(uint64_t i) const { return (i >> 6) < words_.size() && (words_[i >> 6] >> (i & 63) & 1); }
  bool test_and_set(uint64_t i) {
    if ((i >> 6) >= words_.size()) words_.resize(std::max<size_t>((i >> 6) + 1, words_.size() * 2), 0);
    uint64_t bit = 1ull << (i & 63), old = words_[i >> 6];
    words_[i >> 6] = old | bit;
    return old & bit;
  }

 private:
  std::vector<uint64_t> words_;
};

// Every message carries (publisher, sequence from 0). A message is
//   a duplicate  when its sequence was seen before without the redelivered flag to explain it,
//   misordered   when a consumer sees it for the first time behind a later one of the same publisher and queue,
//                unless it is flagged redelivered,
//   corrupt      when its length, its trailer or its publisher cannot be right,
//   lost         when it had to arrive (confirmed, or published where no confirms are used) and did not.
struct Ledger {
  std::vector<Bitmap> seen;  // one per publisher
  uint64_t received = 0, duplicates = 0, misordered = 0, corrupt = 0, redelivered = 0, bad_tags = 0;

  explicit Ledger(size_t publishers) : seen(publishers) {}

  void enter(std::vector<uint64_t>& next, size_t publisher, uint64_t sequence, bool again) {
    received++;
    redelivered += again;
    if (publisher >= seen.size() || sequence >= 1ull << 40) {
      corrupt++;
      return;
    }
    if (seen[publisher].test_and_set(sequence)) {
      if (!again) duplicates++;
      return;
    }
    if (sequence < next[publisher]) misordered += !again;
    else next[publisher] = sequence + 1;
  }
};
