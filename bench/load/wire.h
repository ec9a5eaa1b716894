// AMQP 0-9-1 on the wire, as far as a load generator needs it: frames, and a blocking connection that is used while
// a run is being set up.
//
//   frame := type(1) channel(2) size(4) payload(size) 0xCE
//   method payload := class(2) method(2) arguments
//   header payload := class(2) weight(2) body-size(8) property-flags(2) properties
#pragma once
#include <algorithm>
#include <functional>

#include "socket.h"

enum FrameType { kMethod = 1, kHeader = 2, kBody = 3, kHeartbeat = 8 };
constexpr size_t kFrameOverhead = 8;  // 7 bytes before the payload, the end octet behind it
constexpr uint8_t kFrameEnd = 0xCE;

constexpr uint32_t method_id(uint16_t cls, uint16_t method) { return (uint32_t)cls << 16 | method; }
enum Method : uint32_t {
  kConnectionStart = method_id(10, 10), kConnectionStartOk = method_id(10, 11),
  kConnectionTune = method_id(10, 30), kConnectionTuneOk = method_id(10, 31),
  kConnectionOpen = method_id(10, 40), kConnectionOpenOk = method_id(10, 41),
  kConnectionClose = method_id(10, 50), kConnectionCloseOk = method_id(10, 51),
  kConnectionBlocked = method_id(10, 60), kConnectionUnblocked = method_id(10, 61),
  kChannelOpen = method_id(20, 10), kChannelOpenOk = method_id(20, 11), kChannelClose = method_id(20, 40),
  kQueueDeclare = method_id(50, 10), kQueueDeclareOk = method_id(50, 11),
  kQueueBind = method_id(50, 20), kQueueBindOk = method_id(50, 21),
  kBasicQos = method_id(60, 10), kBasicQosOk = method_id(60, 11),
  kBasicConsume = method_id(60, 20), kBasicConsumeOk = method_id(60, 21),
  kBasicCancel = method_id(60, 30), kBasicPublish = method_id(60, 40), kBasicDeliver = method_id(60, 60),
  kBasicAck = method_id(60, 80), kBasicNack = method_id(60, 120),
  kConfirmSelect = method_id(85, 10), kConfirmSelectOk = method_id(85, 11),
};

inline std::string frame(int type, int channel, const std::string& payload) {
  return Writer().u8(type).u16(channel).u32((uint32_t)payload.size()).raw(payload).u8(kFrameEnd).bytes;
}

inline std::string method_frame(int channel, Method m, const std::string& arguments = "") {
  return frame(kMethod, channel, Writer().u32(m).raw(arguments).bytes);
}

// basic.ack, multiple.
inline void append_ack(std::string& out, int channel, uint64_t tag) {
  uint8_t ack[21] = {kMethod, (uint8_t)(channel >> 8), (uint8_t)channel, 0, 0, 0, 13, 0, 60, 0, 80};
  put64(ack + 11, tag);
  ack[19] = 1;
  ack[20] = kFrameEnd;
  out.append((const char*)ack, sizeof ack);
}

// "k=v,k=v" as a field table's entries: whole numbers as 'I', true and false as 't', the rest as long strings.
inline std::string table_entries(const std::string& spec) {
  Writer table;
  for (size_t at = 0; at < spec.size();) {
    size_t end = spec.find(',', at);
    if (end == std::string::npos) end = spec.size();
    std::string pair = spec.substr(at, end - at);
    at = end + 1;
    size_t equals = pair.find('=');
    if (equals == std::string::npos) throw std::runtime_error("an argument is written key=value: " + pair);
    std::string key = pair.substr(0, equals), value = pair.substr(equals + 1);
    table.shortstr(key);
    if (value == "true" || value == "false") table.u8('t').u8(value == "true");
    else if (!value.empty() && value.find_first_not_of("0123456789") == std::string::npos)
      table.u8('I').u32((uint32_t)atol(value.c_str()));
    else table.u8('S').longstr(value);
  }
  return table.bytes;
}

// What a connection.close or channel.close says, for the error message.
inline std::string close_reason(const uint8_t* payload, size_t size) {
  if (size < 7) return "closed by the broker";
  size_t length = payload[6] < size - 7 ? payload[6] : size - 7;
  return "closed by the broker: " + std::to_string(get16(payload + 4)) + " " +
         std::string((const char*)payload + 7, length);
}

// A blocking connection with channel 1 open.
struct Link : Socket {
  void dial(const std::string& host, int port, const std::string& user, const std::string& password,
            const std::string& vhost, int timeout_s) {
    open(host, port, timeout_s);
    send_all(std::string("AMQP\0\0\x09\x01", 8));
    expect(kConnectionStart);
    Writer capabilities, properties, start_ok, tune_ok;
    for (const char* name : {"publisher_confirms", "basic.nack", "consumer_cancel_notify", "connection.blocked"})
      capabilities.shortstr(name).u8('t').u8(1);
    properties.shortstr("product").u8('S').longstr("amqpload");
    properties.shortstr("capabilities").u8('F').longstr(capabilities.bytes);
    std::string nul(1, '\0');
    start_ok.longstr(properties.bytes).shortstr("PLAIN").longstr(nul + user + nul + password).shortstr("en_US");
    send_all(method_frame(0, kConnectionStartOk, start_ok.bytes));
    std::string tune = expect(kConnectionTune);
    uint32_t offered = get32((const uint8_t*)tune.data() + 6);
    frame_max = offered && offered < 131072 ? offered : 131072;
    tune_ok.raw(tune.substr(4, 2)).u32(frame_max).u16(0);  // heartbeat 0: a run must not spend time on them
    send_all(method_frame(0, kConnectionTuneOk, tune_ok.bytes));
    call(0, kConnectionOpen, Writer().shortstr(vhost).shortstr("").u8(0).bytes, kConnectionOpenOk);
    call(1, kChannelOpen, Writer().shortstr("").bytes, kChannelOpenOk);
  }

  std::string call(int channel, Method m, const std::string& arguments, Method answer) {
    send_all(method_frame(channel, m, arguments));
    return expect(answer);
  }

  // Returns the queue's message count (queue.declare-ok: name, message-count, consumer-count).
  uint32_t declare(const std::string& queue, bool passive, bool durable, const std::string& entries) {
    std::string ok = call(1, kQueueDeclare, declare_arguments(queue, passive, durable, entries), kQueueDeclareOk);
    const uint8_t* p = (const uint8_t*)ok.data() + 4;
    return get32(p + 1 + p[0]);
  }

  static std::string declare_arguments(const std::string& queue, bool passive, bool durable, const std::string& entries) {
    return Writer().u16(0).shortstr(queue).u8((passive ? 1 : 0) | (durable ? 2 : 0)).longstr(entries).bytes;
  }

  // Closing in order makes the broker take everything sent before, the last acknowledgements included.
  void close_in_order() {
    if (fd < 0) return;
    try {
      call(0, kConnectionClose, Writer().u16(200).shortstr("done").u16(0).u16(0).bytes, kConnectionCloseOk);
    } catch (const std::runtime_error&) {
    }
    close();
  }

  // Skips other frames (late deliveries and confirms) until the awaited method arrives.
  std::string expect(Method awaited) {
    for (;;) {
      while (input.size() - at_ < kFrameOverhead || input.size() - at_ < kFrameOverhead + payload_size()) more();
      const uint8_t* head = (const uint8_t*)input.data() + at_;
      std::string payload = input.substr(at_ + 7, payload_size());
      at_ += payload.size() + kFrameOverhead;
      bool method = head[0] == kMethod;
      if (at_ == input.size() || at_ > 1 << 20) { input.erase(0, at_); at_ = 0; }
      if (!method) continue;
      uint32_t id = get32((const uint8_t*)payload.data());
      if (id == awaited) { input.erase(0, at_); at_ = 0; return payload; }
      if (id == kConnectionClose || id == kChannelClose)
        throw std::runtime_error(close_reason((const uint8_t*)payload.data(), payload.size()));
    }
  }

 private:
  size_t at_ = 0;

  uint32_t payload_size() const { return get32((const uint8_t*)input.data() + at_ + 3); }
  void more() {
    fill();
    if (input.size() - at_ >= 4 && !memcmp(input.data() + at_, "AMQP", 4))
      throw std::runtime_error("the broker does not speak AMQP 0-9-1");
  }
};

// Asks in batches so that the broker's work is measured, not the round trips.
inline void in_batches(Link& link, long count, Method answer, const std::function<std::string(long)>& asked) {
  for (long done = 0; done < count;) {
    long batch = std::min(100L, count - done);
    std::string out;
    for (long i = 0; i < batch; i++) out += asked(done + i);
    link.send_all(out);
    for (long i = 0; i < batch; i++) link.expect(answer);
    done += batch;
  }
}
