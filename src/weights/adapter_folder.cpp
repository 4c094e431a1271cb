#include "weights/adapter_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "core/base/error.h"
#include "params/expert_parts.h"
#include "weights/adapter_layout.h"
#include "weights/model_folder.h"

namespace hone {

namespace {

constexpr const char* kSafeName = "adapter_model.safetensors";
constexpr const char* kSavedName = "adapter_model.bin";

std::filesystem::path finished_folder(const std::filesystem::path& directory) {
  require_finished(directory);
  return directory;
}

}  // namespace

AdapterWeights::AdapterWeights(const std::filesystem::path& folder) {
  const std::filesystem::path safe = finished_folder(folder) / kSafeName, saved = folder / kSavedName;
  std::error_code error;
  if (!std::filesystem::exists(safe, error) && std::filesystem::exists(saved, error)) {
    saved_.emplace(saved);
    if (!is_saved_archive(*saved_)) {
      throw UserError("adapter_model.bin is not a file that torch.save writes since PyTorch 1.6 (a zip archive)",
                      saved.string(), "load the adapter with PEFT and save it again, as adapter_model.safetensors");
    }
    for (auto& [name, tensor] : find_saved_tensors(*saved_)) {
      SafetensorsEntry& entry = entries_.emplace_back();
      entry.name = name;
      entry.dtype = tensor.dtype;
      entry.shape = tensor.shape;
      entry.begin = tensor.begin;
      entry.bytes = static_cast<uint64_t>(tensor.numel()) * size_of(tensor.dtype);
      tensors_.emplace(name, std::move(tensor));
    }
    return;
  }
  if (!std::filesystem::exists(safe, error)) {
    throw UserError(fmt::format("the adapter's folder has no {}", kSafeName), folder.string(),
                    "give the folder that PEFT or `hone train` wrote, with its weights");
  }
  safe_.emplace(safe);
}

void AdapterWeights::read_floats(const SafetensorsEntry& entry, int64_t first, float* destination,
                                 int64_t count) const {
  if (safe_) return safe_->read_floats(entry, first, destination, count);
  read_saved_floats(*saved_, tensors_.at(entry.name), first, destination, count);
}

std::vector<float> AdapterWeights::read_floats(const SafetensorsEntry& entry) const {
  std::vector<float> values(static_cast<size_t>(entry.numel()));
  read_floats(entry, 0, values.data(), entry.numel());
  return values;
}

void AdapterWeights::record_reads(FileLedger* ledger) {
  if (safe_) safe_->record_reads(ledger);
}

namespace {

void erase_parts(std::string& name, std::string_view part) {
  for (size_t at = 0; (at = name.find(part, at)) != std::string::npos;) name.erase(at, part.size());
}

/// A key in PEFT's form.
struct AdapterTensorKey {
  std::string name;     ///< without the prefix: "model.layers.0.self_attn.q_proj.lora_A.weight"
  std::string adapter;  ///< the adapter's name in the file's key, or ""
  bool copy = false;    ///< `name` is a weight of the base model, of which this is a copy
};

/// Takes an adapter's name out of what follows `mark`: "lora_A" in "….lora_A.default.weight".
void take_adapter_name(AdapterTensorKey& key, std::string_view mark, std::string_view end) {
  const size_t at = key.name.rfind(mark);
  if (at == std::string::npos) return;
  const std::string rest = key.name.substr(at + mark.size());  // ".default.weight"
  if (!rest.starts_with('.') || !rest.ends_with(end)) return;
  const std::string between = rest.substr(0, rest.size() - end.size());  // ".default"
  if (between.size() < 2 || between.find('.', 1) != std::string::npos) return;
  key.adapter = between.substr(1);
  key.name.erase(at + mark.size(), between.size());
}

AdapterTensorKey peft_key_of(std::string name) {
  for (const char* wrapper : {".orig_module", "._fsdp_wrapped_module", "._checkpoint_wrapped_module", "._orig_mod"}) {
    erase_parts(name, wrapper);
  }
  for (const char* wrapper : {"_fsdp_wrapped_module.", "_orig_mod."}) {
    if (name.starts_with(wrapper)) name.erase(0, std::string_view(wrapper).size());
  }
  if (name.starts_with(kAdapterKeyPrefix)) name.erase(0, std::string_view(kAdapterKeyPrefix).size());
  AdapterTensorKey key{std::move(name), "", false};
  for (const char* mark : {".lora_A", ".lora_B"}) take_adapter_name(key, mark, ".weight");
  // PEFT's own files have the vector without .weight, as a parameter; its state dicts have a module there.
  constexpr std::string_view kMagnitude = ".lora_magnitude_vector";
  take_adapter_name(key, kMagnitude, ".weight");
  if (key.name.ends_with(std::string(kMagnitude) + ".weight")) key.name.erase(key.name.size() - 7);
  for (const char* mark : {".lora_magnitude_vector", ".lora_embedding_A", ".lora_embedding_B"}) {
    take_adapter_name(key, mark, "");
  }
  for (const char* end : {".weight", ".bias"}) {
    constexpr std::string_view kSaved = ".modules_to_save";
    take_adapter_name(key, kSaved, end);
    const size_t saved = key.name.rfind(kSaved);
    if (saved != std::string::npos && key.name.substr(saved + kSaved.size()) == end) {
      key.name.erase(saved, kSaved.size());
    }
    for (const std::string_view base : {".base_layer", ".original_module"}) {
      const std::string tail = std::string(base) + end;
      if (!key.name.ends_with(tail)) continue;
      key.name.erase(key.name.size() - tail.size(), base.size());
      key.copy = true;
    }
  }
  return key;
}

/// The names of this model for those of files.
class ModelNames {
 public:
  explicit ModelNames(const ParameterStore& store) {
    for (const Parameter& p : store.all()) {
      if (p.spec().kind == ParameterKind::kLora) continue;
      inside_ = inside_ || p.name().starts_with(kInside);
      if (is_experts(p)) {
        experts_.emplace(fmt::format("model.layers.{}.mlp.experts.", p.spec().layer), experts_module(p) + ".");
        continue;
      }
      for (const std::string& name : p.spec().all_names()) own_.emplace(without_language_model(name), p.name());
    }
  }

  /// The parameter's name for a name of a file; that name if there is none.
  std::string weight(const std::string& name) const {
    const auto found = own_.find(without_language_model(name));
    return found == own_.end() ? name : found->second;
  }
  /// The same of a tensor of an adapter: what stands before ".lora_…" is a module.
  std::string tensor(const std::string& name) const {
    const size_t end = name.find(".lora_");
    if (end == std::string::npos) return weight(name);
    const std::string module = name.substr(0, end), own = weight(module + ".weight");
    if (own != module + ".weight") return own.substr(0, own.size() - kWeight.size()) + name.substr(end);
    // Experts: their names are read in several forms, all of which have the model's prefix.
    const std::string plain = without_language_model(name);
    if (!plain.starts_with("model.layers.")) return name;
    const size_t experts_end = plain.find(kExperts);
    if (experts_end != std::string::npos) {
      const auto served = experts_.find(plain.substr(0, experts_end + kExperts.size()));
      if (served != experts_.end()) return served->second + plain.substr(served->first.size());
    }
    return inside_ ? std::string(kInside) + plain.substr(std::string_view("model.").size()) : plain;
  }

 private:
  static constexpr std::string_view kInside = "model.language_model.", kWeight = ".weight", kExperts = ".experts.";

  /// transformers 5 has model.language_model.layers, transformers 4 language_model.model.layers.
  static std::string without_language_model(std::string name) {
    constexpr std::string_view kFirst = "language_model.";
    if (name.starts_with(kFirst)) return name.substr(kFirst.size());
    if (name.starts_with(kInside)) return "model." + name.substr(kInside.size());
    return name;
  }

  bool inside_ = false;  ///< the model has language_model in its names
  std::map<std::string, std::string> own_;
  std::map<std::string, std::string> experts_;  ///< modules of experts, by KTransformers' and SGLang's in every model
};

}  // namespace

int64_t vocab_rows_of_adapter(const std::filesystem::path& folder) {
  const bool any = std::filesystem::exists(folder / "adapter_model.safetensors") ||
                   std::filesystem::exists(folder / "adapter_model.bin");
  if (folder.empty() || !any) return 0;
  int64_t rows = 0;
  const AdapterWeights weights(folder);
  for (const SafetensorsEntry& entry : weights.entries()) {
    const auto has = [&](const char* part) { return entry.name.find(part) != std::string::npos; };
    const bool of_vocabulary = has("embed_tokens.") || has("lm_head.");
    if (of_vocabulary && !has("lora_") && !has("base_layer") && entry.shape.size() == 2)
      rows = std::max(rows, entry.shape[0]);
  }
  return rows;
}

namespace {

bool have_same_values(const AdapterWeights& file, const SafetensorsEntry& a, const SafetensorsEntry& b) {
  constexpr int64_t kAtOnce = 1 << 20;
  if (a.shape != b.shape) return false;
  std::vector<float> x, y;
  for (int64_t first = 0; first < a.numel(); first += kAtOnce) {
    const int64_t count = std::min(kAtOnce, a.numel() - first);
    x.resize(static_cast<size_t>(count));
    y.resize(static_cast<size_t>(count));
    file.read_floats(a, first, x.data(), count);
    file.read_floats(b, first, y.data(), count);
    if (x != y) return false;
  }
  return true;
}

}  // namespace

AdapterFolder::AdapterFolder(const std::filesystem::path& directory, const ParameterStore& store, FileLedger* ledger)
    : main_(directory) {
  main_.record_reads(ledger);
  if (std::filesystem::exists(directory / kKtFile)) kt_.emplace(directory / kKtFile).record_reads(ledger);
  const ModelNames names(store);
  std::set<std::string> adapters;
  for (const SafetensorsEntry& entry : main_.entries()) {
    const AdapterTensorKey key = peft_key_of(entry.name);
    if (!key.adapter.empty()) adapters.insert(key.adapter);
    if (adapters.size() > 1) {
      throw UserError(fmt::format("the file holds several adapters: '{}' and '{}'", *adapters.begin(),
                                  *std::next(adapters.begin())),
                      main_.path().string(), "save each in a folder of its own: PEFT's save_pretrained does");
    }
    const auto [at, is_new] = key.copy ? copies_.emplace(names.weight(key.name), &entry)
                                       : by_key_.emplace(kAdapterKeyPrefix + names.tensor(key.name), &entry);
    if (is_new) continue;
    if (key.name.find(".lora_") == std::string::npos && have_same_values(main_, *at->second, entry)) {
      doubles_.push_back(&entry);
      continue;
    }
    throw UserError(fmt::format("'{}' is there twice, under two names", entry.name), main_.path().string(),
                    "copy the adapter again, or have PEFT save it");
  }
}

const SafetensorsEntry* AdapterFolder::find(const std::string& key) const {
  const auto found = by_key_.find(key);
  return found == by_key_.end() ? nullptr : found->second;
}

const SafetensorsEntry& AdapterFolder::at(const std::string& key) const {
  if (const SafetensorsEntry* entry = find(key)) return *entry;
  throw UserError("the file has no tensor '" + key + "'", main_.path().string());
}

int64_t AdapterFolder::largest_rank() const {
  int64_t rows = 1;
  const auto see = [&](const SafetensorsEntry& entry, bool a) {
    if (a && entry.shape.size() >= 2) rows = std::max(rows, entry.shape[entry.shape.size() - 2]);
  };
  for (const auto& [key, entry] : by_key_) see(*entry, key.ends_with(".lora_A.weight"));
  if (!kt_) return rows;
  for (const SafetensorsEntry& entry : kt_->entries()) see(entry, entry.name.ends_with("_lora_a"));
  return rows;
}

}  // namespace hone
