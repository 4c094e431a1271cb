#include "dist/peer_memory.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "core/cuda_peer.h"
#include "core/error.h"
#include "core/json.h"

namespace hone {

namespace {

/// Names this boot of this host, so that handles of another host are not tried.
std::string boot_id() {
  std::string id;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), id);
  return id;
}

std::string hex(const std::array<char, 64>& bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    text += kDigits[static_cast<unsigned char>(c) >> 4];
    text += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return text;
}

std::array<char, 64> from_hex(const std::string& text) {
  std::array<char, 64> bytes{};
  HONE_ASSERT(text.size() == 2 * bytes.size());
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

/// What other ranks need to find this rank's tensors.
std::string describe(Device device, std::span<const Tensor> own) {
  Json json = {{"host", boot_id()}, {"process", getpid()}, {"gpu", device.kind == DeviceKind::kCuda}};
  for (const Tensor& tensor : own) {
    json["addresses"].push_back(reinterpret_cast<uintptr_t>(tensor.data));
    json["counts"].push_back(tensor.numel());
    if (device.kind != DeviceKind::kCuda) continue;
    const cuda::SharedMemoryHandle shared =
        tensor.numel() > 0 ? cuda::share(device.index, tensor.data) : cuda::SharedMemoryHandle{};
    json["allocations"].push_back(hex(shared.allocation));
    json["offsets"].push_back(shared.offset);
  }
  return json.dump();
}

}  // namespace

std::unique_ptr<PeerMemory> PeerMemory::connect(Control& control, Stream& stream, std::span<const Tensor> own,
                                                std::string& why_not) {
  HONE_ASSERT(!own.empty());
  stream.synchronize();
  std::unique_ptr<PeerMemory> memory(new PeerMemory(stream.device()));
  const std::vector<std::string> descriptions = control.exchange(describe(stream.device(), own));
  std::string problem;
  for (size_t rank = 0; rank < descriptions.size() && problem.empty(); ++rank) {
    problem = memory->open(descriptions[rank], rank == static_cast<size_t>(control.rank()), own);
  }
  const std::vector<std::string> problems = control.exchange(problem);
  const auto first = std::find_if(problems.begin(), problems.end(), [](const std::string& p) { return !p.empty(); });
  if (first == problems.end()) return memory;
  why_not = *first;
  return nullptr;
}

std::string PeerMemory::open(const std::string& description, bool own, std::span<const Tensor> tensors) {
  const Json json = Json::parse(description);
  std::vector<std::byte*>& addresses = addresses_.emplace_back();
  HONE_ASSERT(json["addresses"].size() == tensors.size());
  const bool here = json["host"] == boot_id();
  if (own || (here && json["process"] == getpid())) {
    for (const Json& address : json["addresses"]) {
      addresses.push_back(reinterpret_cast<std::byte*>(address.get<uintptr_t>()));
    }
    return "";
  }
  if (!here) return "ranks are on several hosts";
  if (!json["gpu"].get<bool>()) return "CPU ranks are processes of their own";
  std::map<std::string, std::byte*> allocations;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (json["counts"][i] == 0) {
      addresses.push_back(nullptr);
      continue;
    }
    const auto handle = json["allocations"][i].get<std::string>();
    std::byte*& allocation = allocations[handle];
    if (allocation == nullptr) {
      std::string reason;
      allocation = cuda::open_shared(device_.index, {from_hex(handle), 0}, reason);
      if (allocation == nullptr) return "a GPU cannot read another's memory: " + reason;
      opened_.push_back(allocation);
    }
    addresses.push_back(allocation + json["offsets"][i].get<size_t>());
  }
  return "";
}

PeerMemory::~PeerMemory() {
  for (std::byte* allocation : opened_) cuda::close_shared(device_.index, allocation);
}

}  // namespace hone
