// relay: the least that could be called a broker. It answers the handshake, hands every publish of any connection
// to the one consumer, confirms each socket read with one multiple acknowledgement, and stores, routes and checks
// nothing. Against it the load generator shows its own ceiling: no broker's figure above it can be believed.
// Build: g++ -O2 -o relay relay.cc          Use: relay PORT (prints "ready")
#include <fcntl.h>
#include <signal.h>
#include <sys/epoll.h>

#include <map>
#include <memory>
#include <vector>

#include "wire.h"

struct Peer {
  int fd;
  std::string input, output;
  size_t sent = 0;
  bool greeted = false, confirms = false, room = true;
  uint64_t published = 0, confirmed = 0, delivered = 0;
};

static std::map<int, std::unique_ptr<Peer>> peers;
static Peer* consumer = nullptr;
static std::string deliver;       // a finished basic.deliver whose tag is patched
static size_t deliver_tag_at = 0;
static int ep;
constexpr size_t kOutputLimit = 4 << 20;  // publishers are not read while the consumer has so much waiting

static void watch(Peer& p, int operation) {
  epoll_event e{};
  bool publisher = &p != consumer;
  bool readable = !publisher || !consumer || consumer->output.size() - consumer->sent < kOutputLimit;
  e.events = (readable ? (uint32_t)EPOLLIN : 0u) | (p.room ? 0u : (uint32_t)EPOLLOUT);
  e.data.ptr = &p;
  epoll_ctl(ep, operation, p.fd, &e);
}

static void flush(Peer& p) {
  bool had_room = p.room, was_full = p.output.size() - p.sent >= kOutputLimit;
  while (p.sent < p.output.size()) {
    ssize_t n = send(p.fd, p.output.data() + p.sent, p.output.size() - p.sent, MSG_NOSIGNAL);
    if (n <= 0) break;
    p.sent += (size_t)n;
  }
  p.room = p.sent == p.output.size();
  if (p.room) p.output.clear(), p.sent = 0;
  bool is_full = p.output.size() - p.sent >= kOutputLimit;
  if (p.room != had_room) watch(p, EPOLL_CTL_MOD);
  if (&p == consumer && was_full != is_full)
    for (auto& [fd, peer] : peers)
      if (peer.get() != consumer) watch(*peer, EPOLL_CTL_MOD);
}

static void answer(Peer& p, int channel, uint32_t id, const uint8_t* payload) {
  auto say = [&](Method m, const std::string& arguments) { p.output += method_frame(channel, m, arguments); };
  switch (id) {
    case kConnectionStartOk: return say(kConnectionTune, Writer().u16(2047).u32(131072).u16(0).bytes);
    case kConnectionOpen: return say(kConnectionOpenOk, Writer().shortstr("").bytes);
    case kConnectionClose: return say(kConnectionCloseOk, "");
    case kChannelOpen: return say(kChannelOpenOk, Writer().longstr("").bytes);
    case kQueueDeclare:
      return say(kQueueDeclareOk, Writer().raw(std::string((const char*)payload + 6, 1 + payload[6])).u32(0).u32(0).bytes);
    case kBasicQos: return say(kBasicQosOk, "");
    case kConfirmSelect: p.confirms = true; return say(kConfirmSelectOk, "");
    case kBasicConsume:
      consumer = &p;
      deliver = method_frame(1, kBasicDeliver, Writer().shortstr("c").u64(0).u8(0).shortstr("").shortstr("load").bytes);
      deliver_tag_at = 11 + 2;
      return say(kBasicConsumeOk, Writer().shortstr("c").bytes);
    default: return;
  }
}

static bool serve(Peer& p) {
  static std::vector<uint8_t> scratch(1 << 20);
  constexpr size_t kRead = 256 << 10;
  memcpy(scratch.data(), p.input.data(), p.input.size());
  ssize_t n = recv(p.fd, scratch.data() + p.input.size(), kRead, 0);
  if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
  if (n < 0) return true;
  const uint8_t *at = scratch.data(), *end = at + p.input.size() + n;
  if (!p.greeted && end - at >= 8) {
    p.greeted = true;
    at += 8;
    p.output += method_frame(0, kConnectionStart, Writer().u8(0).u8(9).longstr("").longstr("PLAIN").longstr("en_US").bytes);
  }
  while (end - at >= (ptrdiff_t)kFrameOverhead) {
    size_t size = get32(at + 3);
    if ((size_t)(end - at) < size + kFrameOverhead) break;
    if (at[0] == kMethod && get32(at + 7) == kBasicPublish) {
      // publish, header and body of one small message are wanted together
      const uint8_t* content = at + size + kFrameOverhead;
      if (end - content < 7) break;
      const uint8_t* body = content + get32(content + 3) + kFrameOverhead;
      if (end - body < 7) break;
      const uint8_t* after = body + get32(body + 3) + kFrameOverhead;
      if (after > end) break;
      p.published++;
      if (consumer) {
        put64((uint8_t*)deliver.data() + deliver_tag_at, ++consumer->delivered);
        consumer->output += deliver;
        consumer->output.append((const char*)content, (size_t)(after - content));
      }
      at = after;
      continue;
    }
    if (at[0] == kMethod) answer(p, get16(at + 1), get32(at + 7), at + 7);
    at += size + kFrameOverhead;
  }
  p.input.assign((const char*)at, (size_t)(end - at));
  if (p.confirms && p.published > p.confirmed)
    p.output += method_frame(1, kBasicAck, Writer().u64(p.confirmed = p.published).u8(1).bytes);
  flush(p);
  if (consumer && consumer != &p) flush(*consumer);
  return true;
}

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc != 2) return fprintf(stderr, "relay PORT\n"), 2;
  int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons((uint16_t)atoi(argv[1]));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(listener, (sockaddr*)&address, sizeof address) || listen(listener, 128)) return perror("relay"), 1;
  ep = epoll_create1(0);
  epoll_event e{};
  e.events = EPOLLIN;
  epoll_ctl(ep, EPOLL_CTL_ADD, listener, &e);
  puts("ready");
  fflush(stdout);
  for (;;) {
    epoll_event events[64];
    int n = epoll_wait(ep, events, 64, -1);
    for (int i = 0; i < n; i++) {
      Peer* p = (Peer*)events[i].data.ptr;
      if (!p) {
        int fd = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK);
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        auto& slot = peers[fd];
        slot.reset(new Peer{fd, "", ""});
        watch(*slot, EPOLL_CTL_ADD);
        continue;
      }
      if (events[i].events & EPOLLOUT) flush(*p);
      if (!(events[i].events & ~(uint32_t)EPOLLOUT) || serve(*p)) continue;
      if (p == consumer) consumer = nullptr;
      close(p->fd);
      peers.erase(p->fd);
      break;  // later events of this wait may name the peer that is gone
    }
  }
}
