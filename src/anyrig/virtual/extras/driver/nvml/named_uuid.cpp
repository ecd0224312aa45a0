#include "named_uuid.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace anyrig::nvml {
namespace {

/// RFC 3174.
std::array<std::uint32_t, 5> sha1(std::string message) {
  const std::uint64_t bits = message.size() * 8;
  message.push_back('\x80');
  while (message.size() % 64 != 56) message.push_back('\0');
  for (int shift = 56; shift >= 0; shift -= 8) message.push_back(static_cast<char>(bits >> shift));

  std::array<std::uint32_t, 5> state{0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0};
  for (std::size_t block = 0; block < message.size(); block += 64) {
    std::array<std::uint32_t, 80> words;
    for (std::size_t i = 0; i < 16; ++i) {
      words[i] = 0;
      for (std::size_t byte = 0; byte < 4; ++byte)
        words[i] = words[i] << 8 | static_cast<unsigned char>(message[block + 4 * i + byte]);
    }
    for (std::size_t i = 16; i < 80; ++i)
      words[i] = std::rotl(words[i - 3] ^ words[i - 8] ^ words[i - 14] ^ words[i - 16], 1);
    auto [a, b, c, d, e] = state;
    for (std::size_t i = 0; i < 80; ++i) {
      const std::uint32_t mixed = i < 20 ? ((b & c) | (~b & d)) + 0x5A827999
          : i < 40                       ? (b ^ c ^ d) + 0x6ED9EBA1
          : i < 60                       ? ((b & c) | (b & d) | (c & d)) + 0x8F1BBCDC
                                         : (b ^ c ^ d) + 0xCA62C1D6;
      const std::uint32_t next = std::rotl(a, 5) + mixed + e + words[i];
      e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
    }
    state = {state[0] + a, state[1] + b, state[2] + c, state[3] + d, state[4] + e};
  }
  return state;
}

}  // namespace

std::string named_uuid(const std::string& space, const std::string& name) {
  std::string message;
  for (std::size_t i = 0; i + 1 < space.size(); i += 2)
    message.push_back(static_cast<char>(std::strtoul(space.substr(i, 2).c_str(), nullptr, 16)));
  auto digest = sha1(message + name);
  digest[1] = (digest[1] & 0xFFFF0FFF) | 0x5000;          // the version
  digest[2] = (digest[2] & 0x3FFFFFFF) | 0x80000000;      // the variant
  char text[37];
  std::snprintf(
      text, sizeof text, "%08x-%04x-%04x-%04x-%04x%08x", digest[0], digest[1] >> 16,
      digest[1] & 0xFFFF, digest[2] >> 16, digest[2] & 0xFFFF, digest[3]);
  return text;
}

}  // namespace anyrig::nvml
