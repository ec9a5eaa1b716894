// AMQP 1.0 on the wire, as far as a load generator needs it: frames, performatives, a blocking connection with one
// session, and the two ends of a link, which keep the numbers of a measured run.
//
//   frame := size(4) doff(1) type(1) channel(2) body
//   body := 0x00 0x53 descriptor list-of-fields payload
#pragma once
#include <vector>

#include "socket.h"

constexpr size_t kHead10 = 8;
constexpr uint32_t kWindow10 = 0x7fffffff;  // of a session: held by credit alone
enum Performative : uint8_t {
  kOpen = 0x10, kBegin = 0x11, kAttach = 0x12, kFlow = 0x13, kTransfer = 0x14, kDisposition = 0x15, kDetach = 0x16,
  kEnd = 0x17, kClose = 0x18, kAccepted = 0x24, kSaslMechanisms = 0x40, kSaslInit = 0x41, kSaslOutcome = 0x44,
};

// -- writing

inline std::string null10() { return "\x40"; }
inline std::string bool10(bool v) { return v ? "\x41" : "\x42"; }
inline std::string uint10(uint32_t v) { return Writer().u8(0x70).u32(v).bytes; }
inline std::string ubyte10(unsigned v) { return Writer().u8(0x50).u8(v).bytes; }
inline std::string text10(const std::string& s) { return Writer().u8(0xb1).longstr(s).bytes; }
inline std::string symbol10(const std::string& s) { return Writer().u8(0xb3).longstr(s).bytes; }
inline std::string binary10(const std::string& s) { return Writer().u8(0xb0).longstr(s).bytes; }

inline std::string described10(uint8_t code, const std::vector<std::string>& fields) {
  std::string body;
  for (auto& field : fields) body += field;
  return Writer().u8(0).u8(0x53).u8(code).u8(0xd0).u32((uint32_t)body.size() + 4).u32((uint32_t)fields.size()).raw(body).bytes;
}

inline std::string frame10(int type, const std::string& body) {
  return Writer().u32((uint32_t)(body.size() + kHead10)).u8(2).u8((unsigned)type).u16(0).raw(body).bytes;
}

// -- reading; what a broker sends is well-formed, or the run fails

// Behind a value.
inline const uint8_t* behind10(const uint8_t* p) {
  switch (*p >> 4) {
    case 0: return behind10(behind10(p + 1));
    case 4: return p + 1;
    case 5: return p + 2;
    case 6: return p + 3;
    case 7: return p + 5;
    case 8: return p + 9;
    case 9: return p + 17;
    case 0xa: case 0xc: case 0xe: return p + 2 + p[1];
    default: return p + 5 + get32(p + 1);
  }
}

struct Fields10 {
  const uint8_t *at, *end;  // end: behind the list
  uint32_t left;

  explicit Fields10(const uint8_t* list) {
    if (*list == 0x45) at = end = list + 1, left = 0;
    else if (*list == 0xc0) at = list + 3, end = list + 2 + list[1], left = list[2];
    else at = list + 9, end = list + 5 + get32(list + 1), left = get32(list + 5);
  }
  // The next field, or null where it is absent.
  const uint8_t* next() {
    if (!left) return nullptr;
    left--;
    const uint8_t* field = at;
    at = behind10(at);
    return *field == 0x40 ? nullptr : field;
  }
  void skip(int fields) { while (fields--) next(); }
  bool number(uint64_t& v) {
    const uint8_t* p = next();
    if (!p) return false;
    v = *p == 0x43 || *p == 0x44 ? 0 : *p == 0x70 ? get32(p + 1) : *p == 0x80 ? get64(p + 1) : *p == 0x60 ? get16(p + 1) : p[1];
    return true;
  }
  bool flag() {
    const uint8_t* p = next();
    return p && (*p == 0x41 || (*p == 0x56 && p[1]));
  }
  std::string text() {
    const uint8_t* p = next();
    if (!p) return "";
    return *p >> 4 == 0xa ? std::string((const char*)p + 2, p[1]) : std::string((const char*)p + 5, get32(p + 1));
  }
};

// Reads a described list's descriptor; both writers of codes are in use.
inline uint8_t descriptor10(const uint8_t* p) { return p[1] == 0x53 ? p[2] : p[1] == 0x80 ? p[9] : 0; }
inline const uint8_t* value10(const uint8_t* p) { return behind10(p + 1); }

inline std::string reason10(const uint8_t* performative) {
  uint8_t code = descriptor10(performative);
  Fields10 fields(value10(performative));
  if (code == kDetach) fields.skip(2);
  const uint8_t* error = fields.next();
  if (!error) return "ended by the broker";
  Fields10 said(value10(error));
  std::string condition = said.text();
  return "ended by the broker: " + condition + ": " + said.text();
}

// A blocking connection with one session. A flow that comes while something else is awaited is kept for the run.
struct Link10 : Socket {
  uint64_t window = 0;  // transfers that the broker's session takes before its first flow

  void dial(const std::string& host, int port, const std::string& user, const std::string& password,
            const std::string& vhost, int timeout_s, const std::string& container) {
    open(host, port, timeout_s);
    std::string nul(1, '\0');
    send_all(std::string("AMQP\3\1\0\0", 8));
    expect_header();
    expect(kSaslMechanisms);
    send_all(frame10(1, described10(kSaslInit, {symbol10("PLAIN"), binary10(nul + user + nul + password)})));
    std::string outcome = expect(kSaslOutcome);
    uint64_t code = 1;
    Fields10(value10((const uint8_t*)outcome.data())).number(code);
    if (code) throw std::runtime_error("the broker refuses user " + user);
    send_all(std::string("AMQP\0\1\0\0", 8));
    expect_header();
    std::string host_field = vhost == "/" ? text10(host) : text10("vhost:" + vhost);
    send_all(frame10(0, described10(kOpen, {text10(container), host_field, uint10(131072)})));
    std::string opened = expect(kOpen);
    Fields10 limits(value10((const uint8_t*)opened.data()));
    limits.skip(2);
    uint64_t offered = 131072;
    limits.number(offered);
    frame_max = (uint32_t)std::min<uint64_t>(offered, 131072);
    send_all(frame10(0, described10(kBegin, {null10(), uint10(0), uint10(kWindow10), uint10(kWindow10)})));
    std::string begun = expect(kBegin);
    Fields10 session(value10((const uint8_t*)begun.data()));
    session.skip(2);
    session.number(window);
  }

  // `settled`: nothing is to be confirmed. `durable`: the link's state is to survive (its terminus says unsettled-state).
  void attach(const std::string& name, uint32_t handle, bool receiver, const std::string& address, bool settled, bool durable) {
    std::vector<std::string> terminus{text10(address), uint10(durable ? 2 : 0), symbol10(durable ? "never" : "session-end")};
    std::string near = described10(receiver ? 0x29 : 0x28, {}), far = described10(receiver ? 0x28 : 0x29, terminus);
    std::vector<std::string> fields{text10(name), uint10(handle), bool10(receiver), ubyte10(settled ? 1 : 0), ubyte10(0),
                                    receiver ? far : near, receiver ? near : far, null10(), null10(),
                                    receiver ? null10() : uint10(0)};
    if (durable) fields.insert(fields.end(), {null10(), null10(), symbol10("clusterbroker:link-recovery")});
    send_all(frame10(0, described10(kAttach, fields)));
    std::string answer = expect(kAttach);
    Fields10 said(value10((const uint8_t*)answer.data()));
    said.skip(receiver ? 5 : 6);
    if (!said.next()) throw std::runtime_error(reason10((const uint8_t*)expect(kDetach).data()));
    if (!durable) return;
    said.skip(receiver ? 5 : 4);
    const uint8_t* offered = said.next();
    if (!offered || std::string((const char*)offered, (size_t)(said.at - offered)).find("link-recovery") == std::string::npos)
      throw std::runtime_error("the broker does not offer clusterbroker:link-recovery");
  }

  void close_in_order() {
    if (fd < 0) return;
    try {
      send_all(frame10(0, described10(kClose, {})));
      expect(kClose);
    } catch (const std::runtime_error&) {
    }
    close();
  }

 private:
  void expect_header() {
    while (input.size() < 8) fill();
    if (input.compare(0, 4, "AMQP") || input[5] != 1) throw std::runtime_error("the broker does not speak AMQP 1.0");
    input.erase(0, 8);
  }

  // Takes the awaited performative out of what came; others stay in front of what follows, but for late deliveries.
  std::string expect(uint8_t awaited) {
    for (size_t at = 0;;) {
      while (input.size() < at + kHead10 || input.size() < at + get32((const uint8_t*)input.data() + at)) fill();
      const uint8_t* head = (const uint8_t*)input.data() + at;
      uint32_t size = get32(head);
      const uint8_t* body = head + head[4] * 4u;
      if (body == head + size) { at += size; continue; }
      uint8_t code = descriptor10(body);
      std::string found((const char*)body, (const char*)head + size);
      if (code == awaited) return input.erase(at, size), found;
      if (code == kDetach || code == kEnd || code == kClose) throw std::runtime_error(reason10(body));
      at += size;
    }
  }
};

// -- a run's two ends of a link

// What the broker allows a sender: credit, and room in its session's window. Numbers are of 64 bits here, of 32 on the wire.
struct Sender10 {
  uint64_t credit_until = 0, window_until = 0;  // the first delivery that may not be sent
  bool echo = false;                            // an answer is owed

  uint64_t room(uint64_t next) const {
    uint64_t until = std::min(credit_until, window_until);
    return until > next ? until - next : 0;
  }

  // A number of the wire near one that is known.
  static uint64_t widened(uint64_t near, uint64_t number) { return near + (uint64_t)(int64_t)(int32_t)((uint32_t)number - (uint32_t)near); }

  void flow(const uint8_t* list, uint64_t next) {
    Fields10 fields(list);
    uint64_t incoming = 0, window = 0, count = 0, credit = 0, handle;
    fields.number(incoming);
    fields.number(window);
    window_until = widened(next, incoming) + window;
    fields.skip(2);
    if (fields.number(handle)) {
      fields.number(count);
      if (fields.number(credit)) credit_until = widened(next, count) + credit;
      fields.skip(2);
    } else {
      fields.skip(4);
    }
    echo |= fields.flag();
  }

  static std::string answer(uint64_t next) {
    return frame10(0, described10(kFlow, {uint10(0), uint10(kWindow10), uint10((uint32_t)next), uint10(kWindow10), uint10(0), uint10((uint32_t)next)}));
  }
};

// What a receiver has told the broker, and how many frames and deliveries came.
struct Receiver10 {
  uint64_t frames = 0, deliveries = 0, credit_until = 0;

  std::string flow(uint64_t credit) {
    credit_until = deliveries + credit;
    return frame10(0, described10(kFlow, {uint10((uint32_t)frames), uint10(kWindow10), uint10(0), uint10(kWindow10), uint10(0),
                                          uint10((uint32_t)deliveries), uint10((uint32_t)credit)}));
  }

  // Accepted and settled: the last `count` deliveries up to `last`.
  static std::string accepted(uint64_t last, uint64_t count) {
    std::string state("\0\x53\x24\x45", 4);
    return frame10(0, described10(kDisposition, {bool10(true), uint10((uint32_t)(last - count + 1)), uint10((uint32_t)last), bool10(true), state}));
  }
};

// One finished transfer frame of a publisher, whose delivery-id, delivery-tag and body are patched.
struct Transfer10 {
  static constexpr size_t kIdAt = 16, kTagAt = 22;
  std::string bytes;
  size_t body_at;

  Transfer10(size_t size, bool durable, bool settled) {
    std::string fields = Writer().u8(0x43).u8(0x70).u32(0).u8(0xa0).u8(4).u32(0).u8(0x43).u8(settled ? 0x41 : 0x42).bytes;
    Writer body;
    body.u8(0).u8(0x53).u8(kTransfer).u8(0xc0).u8((unsigned)fields.size() + 1).u8(5).raw(fields);
    if (durable) body.u8(0).u8(0x53).u8(0x70).u8(0xc0).u8(2).u8(1).u8(0x41);
    body.u8(0).u8(0x53).u8(0x75);
    if (size < 256) body.u8(0xa0).u8((unsigned)size);
    else body.u8(0xb0).u32((uint32_t)size);
    body_at = kHead10 + body.bytes.size();
    bytes = frame10(0, body.bytes + std::string(size, 'x'));
  }
};
