// A blocking connection and big-endian numbers: what setting a run up needs, whatever protocol is spoken. The measured
// part of a run does not pass through here.
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <stdexcept>
#include <string>

inline uint64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}

inline uint16_t get16(const uint8_t* p) { return (uint16_t)(p[0] << 8 | p[1]); }
inline uint32_t get32(const uint8_t* p) { uint32_t v; memcpy(&v, p, 4); return __builtin_bswap32(v); }
inline uint64_t get64(const uint8_t* p) { uint64_t v; memcpy(&v, p, 8); return __builtin_bswap64(v); }
inline void put32(uint8_t* p, uint32_t v) { v = __builtin_bswap32(v); memcpy(p, &v, 4); }
inline void put64(uint8_t* p, uint64_t v) { v = __builtin_bswap64(v); memcpy(p, &v, 8); }

struct Writer {
  std::string bytes;
  Writer& u8(unsigned v) { bytes.push_back((char)v); return *this; }
  Writer& u16(unsigned v) { return u8(v >> 8).u8(v & 255); }
  Writer& u32(uint32_t v) { return u16(v >> 16).u16(v & 65535); }
  Writer& u64(uint64_t v) { return u32((uint32_t)(v >> 32)).u32((uint32_t)v); }
  Writer& shortstr(const std::string& s) { u8((unsigned)s.size()); return raw(s); }
  Writer& longstr(const std::string& s) { u32((uint32_t)s.size()); return raw(s); }
  Writer& raw(const std::string& s) { bytes += s; return *this; }
};

// Every failure is a std::runtime_error that says what was waited for.
struct Socket {
  int fd = -1;
  uint32_t frame_max = 131072;
  std::string input;  // bytes read but not yet consumed; a run takes them over with the descriptor

  void open(const std::string& host, int port, int timeout_s) {
    timeout_s_ = timeout_s;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)port);
    if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) throw std::runtime_error("not an address: " + host);
    if (connect(fd, (sockaddr*)&address, sizeof address))
      throw std::runtime_error(std::string("connect: ") + strerror(errno));
  }

  void send_all(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      ssize_t n = send(fd, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n > 0) at += (size_t)n;
      else if (errno == EAGAIN) wait_for(POLLOUT);
      else throw std::runtime_error(std::string("send: ") + strerror(errno));
    }
  }

  void close() {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }

 protected:
  void fill() {
    char chunk[65536];
    wait_for(POLLIN);
    ssize_t n = recv(fd, chunk, sizeof chunk, 0);
    if (n <= 0 && !(n < 0 && errno == EAGAIN)) throw std::runtime_error("connection dropped by the broker");
    if (n > 0) input.append(chunk, (size_t)n);
  }

 private:
  int timeout_s_ = 10;

  void wait_for(short events) {
    pollfd p{fd, events, 0};
    if (poll(&p, 1, timeout_s_ * 1000) <= 0) throw std::runtime_error("no answer in time");
  }
};
