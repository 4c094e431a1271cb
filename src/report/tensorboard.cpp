#include "report/tensorboard.h"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <system_error>

#include "core/base/checksum.h"
#include "core/base/unix_seconds.h"

namespace hone {
namespace {

enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

template <class Unsigned>
void put_little_endian(std::string& out, Unsigned value) {
  for (size_t i = 0; i < sizeof(Unsigned); ++i) out += static_cast<char>(value >> (8 * i));
}

void put_tag(std::string& out, uint32_t field, WireType type) { put_varint(out, field << 3 | type); }

void put_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  put_tag(out, field, kBytes);
  put_varint(out, bytes.size());
  out += bytes;
}

std::string host_name() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0 || !name[0]) return "localhost";
  std::string host = name.data();
  for (char& c : host) {
    if (c == '/') c = '_';
  }
  return host;
}

AppendFile create_event_file(const std::string& folder) {
  const std::string base =
      fmt::format("{}/events.out.tfevents.{}.{}", folder, static_cast<int64_t>(unix_seconds()), host_name());
  constexpr int kAttempts = 1000;
  for (int attempt = 0;; ++attempt) {
    try {
      return AppendFile(attempt == 0 ? base : fmt::format("{}.{}", base, attempt), /*exclusive=*/true);
    } catch (const std::system_error& error) {
      if (error.code() != std::errc::file_exists || attempt == kAttempts) throw;
    }
  }
}

std::string record(std::string_view bytes) {
  std::string length, out;
  put_little_endian(length, uint64_t{bytes.size()});
  out = length;
  put_little_endian(out, masked_crc32c(length));
  out += bytes;
  put_little_endian(out, masked_crc32c(bytes));
  return out;
}

}  // namespace

TensorBoardWriter::TensorBoardWriter(const std::string& folder) : file_(create_event_file(folder)) {
  std::string version;
  put_bytes(version, 3, "brain.Event:2");
  write_event(0, version);
}

void TensorBoardWriter::forget_from(int64_t step) {
  constexpr uint64_t kSessionStart = 1;
  std::string session, payload;
  put_tag(session, 1, kVarint);
  put_varint(session, kSessionStart);
  put_bytes(payload, 7, session);
  write_event(step, payload);
}

void TensorBoardWriter::write(int64_t step, std::span<const Metric> metrics) {
  std::string summary, payload;
  for (const auto& metric : metrics) {
    if (metric.name == "step") continue;
    std::string value;
    put_bytes(value, 1, metric.name);
    put_tag(value, 2, kFixed32);
    put_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(metric.value)));
    put_bytes(summary, 1, value);
  }
  put_bytes(payload, 5, summary);
  write_event(step, payload);
}

void TensorBoardWriter::write_event(int64_t step, std::string_view payload) {
  std::string event;
  put_tag(event, 1, kFixed64);
  put_little_endian(event, std::bit_cast<uint64_t>(unix_seconds()));
  put_tag(event, 2, kVarint);
  put_varint(event, static_cast<uint64_t>(step));
  event += payload;
  file_.write(record(event));
}

}  // namespace hone
