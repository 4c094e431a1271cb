#include "weights/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "core/base/error.h"
#include "core/base/float_value.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "params/adapter_kind.h"
#include "params/expert_parts.h"
#include "weights/adapter_config.h"
#include "weights/adapter_coverage.h"
#include "weights/adapter_folder.h"
#include "weights/adapter_keys.h"
#include "weights/adapter_layout.h"
#include "weights/checkpoint.h"
#include "weights/grown_rows.h"
#include "weights/kt_manifest.h"
#include "weights/safetensors.h"
#include "weights/stored_tensor.h"
#include "weights/tensor_dims.h"

namespace hone {

namespace {

constexpr std::string_view kLoraA = ".lora_A.weight";
constexpr double kLargestRank = 1 << 20;

Json read_adapter_config(const std::filesystem::path& path) {
  std::optional<Json> json = read_json_if_there(path);
  if (!json)
    throw UserError("the adapter folder has no adapter_config.json", path.string(),
                    "give the folder that PEFT or `hone train` wrote");
  if (!json->is_object()) throw UserError("adapter_config.json is not a JSON object", path.string());
  return std::move(*json);
}

/// A number of the configuration, PEFT's default if it has none.
double number_of(const Json& config, const char* key, double fallback) {
  return config.contains(key) && config[key].is_number() ? config[key].get<double>() : fallback;
}

/// Tensors of adapters that are not a LoRA of a module's weight, by the end of their keys.
struct ForeignTensor {
  std::string_view end, what;
};

constexpr ForeignTensor kForeignTensors[] = {
    {".lora_embedding_A", "a LoRA of an embedding, which is known, not in this version"},
    {".lora_embedding_B", "a LoRA of an embedding, which is known, not in this version"},
    {".trainable_tokens_delta", "the rows of some tokens (trainable_token_indices), which is not supported"},
    {".trainable_tokens_original", "the rows of some tokens (trainable_token_indices), which is not supported"},
    {".lora_A.bias", "a bias of an adapter (lora_bias), which is not supported"},
    {".lora_B.bias", "a bias of an adapter (lora_bias), which is not supported"},
};

void refuse_foreign(const std::string& key, const SafetensorsEntry& entry, const AdapterWeights& file) {
  for (const ForeignTensor& foreign : kForeignTensors) {
    if (!key.ends_with(foreign.end)) continue;
    throw UserError(fmt::format("'{}' is {}", entry.name, foreign.what), file.path().string(),
                    "merge the adapter with PEFT (merge_and_unload, then save_pretrained), and use the model that this "
                    "gives; lora_modules_to_save trains embed_tokens and lm_head in full");
  }
}

/// An embedding or a head of another number of rows belongs to a model of another vocabulary.
void check_vocabulary(const SafetensorsEntry& entry, const Parameter& p, const AdapterWeights& file) {
  const bool of_vocabulary = p.spec().kind == ParameterKind::kEmbedding || p.spec().kind == ParameterKind::kHead;
  if (!of_vocabulary || entry.shape.size() != 2 || entry.shape[0] == p.shape()[0]) return;
  throw UserError(fmt::format("'{}' has rows for a vocabulary of {} tokens, and this model's has {}", entry.name,
                              entry.shape[0], p.shape()[0]),
                  file.path().string(),
                  fmt::format("use the base model of {} rows, for which the adapter was made", entry.shape[0]));
}

/// PEFT 0.19 changed the orientation of target_parameters; older files look the same but have another meaning.
void refuse_old_target_parameters(const Json& config, const std::filesystem::path& path) {
  const std::string version = config.contains("peft_version") && config["peft_version"].is_string()
                                  ? config["peft_version"].get<std::string>()
                                  : "0.0";
  int major = 0, minor = 0;
  const char* end = version.data() + version.size();
  const auto parsed = std::from_chars(version.data(), end, major);
  if (parsed.ptr != end) std::from_chars(parsed.ptr + 1, end, minor);
  if (major > 0 || minor >= 19) return;
  throw UserError(
      fmt::format("the adapter's target_parameters were written by PEFT {}, which used the transposed layout", version),
      path.string(), "load and save it with PEFT 0.19 or newer");
}

/// Reads rank_pattern or alpha_pattern.
std::vector<LoraPattern> read_patterns(const Json& config, const char* key, const std::filesystem::path& path) {
  std::vector<LoraPattern> patterns;
  if (!config.contains(key) || config[key].is_null()) return patterns;
  const auto refuse = [&] {
    throw UserError(fmt::format("{} of the adapter is not a mapping of names to numbers", key), path.string());
  };
  if (!config[key].is_object()) refuse();
  for (const auto& [pattern, value] : config[key].items()) {
    if (!value.is_number() || !is_positive(value.get<double>())) refuse();
    patterns.push_back({pattern, value});
  }
  return patterns;
}

/// Also by the head's name, where the embedding is the head.
const Parameter* find_by_name(const ParameterStore& store, const std::string& name) {
  for (const Parameter& p : store.all()) {
    if (p.name() == name) return &p;
    if (p.spec().kind != ParameterKind::kEmbedding) continue;
    const std::vector<std::string> names = whole_names(store, p);
    if (std::find(names.begin(), names.end(), name) != names.end()) return &p;
  }
  return nullptr;
}

/// Kinds of the weights saved in full, by the names that their tensors may have.
std::map<std::string, ParameterKind> kinds_of_whole(const ParameterStore& store) {
  std::map<std::string, ParameterKind> kinds;
  for (const Parameter& p : store.all()) {
    if (!can_be_saved_whole(p.spec().kind)) continue;
    for (const std::string& name : whole_names(store, p)) kinds.emplace(name, p.spec().kind);
  }
  return kinds;
}

/// Names of the modules of one projection of a layer's experts: the expert's number is between prefix and leaf.
struct ExpertNames {
  std::string file_prefix, file_leaf;  // "….block_sparse_moe.experts.", ".w1"
  std::string own_prefix, own_leaf;    // "….mlp.experts.", ".gate_proj"
  std::string kt_keys[2];              // "layers.3.experts.gate_lora_a", …_b
  const Parameter* weight = nullptr;   // the weight of all experts
  int64_t out_begin = 0;

  std::string glob() const { return file_prefix + "*" + file_leaf; }
  static bool is_expert(const std::string& module, const std::string& prefix, const std::string& leaf) {
    if (!module.starts_with(prefix) || !module.ends_with(leaf) || module.size() <= prefix.size() + leaf.size())
      return false;
    const std::string number = module.substr(prefix.size(), module.size() - prefix.size() - leaf.size());
    return std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  }
  bool have(const std::string& module) const {
    return is_expert(module, file_prefix, file_leaf) || is_expert(module, own_prefix, own_leaf);
  }
};

std::vector<ExpertNames> expert_names(const ParameterStore& store) {
  std::vector<ExpertNames> names;
  for (const Parameter& p : store.all()) {
    if (!is_experts(p)) continue;
    const ExpertKeys keys(p, ExpertNaming::kFile);
    for (const ExpertPart& part : parts_of(p)) {
      const std::string key = keys.module(0, part.out_begin);
      const std::string file_name = key.substr(std::string_view(kAdapterKeyPrefix).size());  // ….experts.0.w1
      const size_t leaf = file_name.rfind('.');
      names.push_back({file_name.substr(0, leaf - 1),
                       file_name.substr(leaf),
                       experts_module(p) + ".",
                       "." + part.name,
                       {kt_key(p, part.name, true), kt_key(p, part.name, false)},
                       &p,
                       part.out_begin});
    }
  }
  return names;
}

/// The projection of experts to which a module belongs; null if it is not an expert's.
const ExpertNames* expert_part(const std::vector<ExpertNames>& experts, const std::string& module) {
  const auto found =
      std::find_if(experts.begin(), experts.end(), [&](const ExpertNames& names) { return names.have(module); });
  return found == experts.end() ? nullptr : &*found;
}

/// Adds the globs of the expert parts that a KTransformers file adapts.
void add_kt_parts(const std::vector<ExpertNames>& experts, const SafetensorsFile& file, std::set<std::string>& globs) {
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto has = [&](const ExpertNames& names) {
      return entry.name == names.kt_keys[0] || entry.name == names.kt_keys[1];
    };
    const auto found = std::find_if(experts.begin(), experts.end(), has);
    if (found == experts.end()) {
      throw UserError("the adapter adapts '" + entry.name + "', which this model does not have", file.path().string(),
                      "use the base model that the adapter was trained on");
    }
    globs.insert(found->glob());
  }
}

/// The fused weight of a shared adapter with A [r·E, in]: in is H for gate_up, I for down.
const Parameter* shared_target(const ParameterStore& store, const std::string& module, const AdapterFolder& files,
                               const SafetensorsEntry& a, const SafetensorsEntry& b) {
  constexpr std::string_view kInner = ".base_layer";
  const bool inner = module.ends_with(kInner);
  const std::string experts = inner ? module.substr(0, module.size() - kInner.size()) : module;
  const Parameter* found = nullptr;
  for (const Parameter& p : store.all()) {
    if (!is_experts(p) || experts_module(p) != experts || a.shape.size() != 2 || b.shape.size() != 2 ||
        a.shape[1] != p.shape()[2] || b.shape[0] != p.shape()[1]) {
      continue;
    }
    if (found == nullptr) {
      found = &p;
      continue;
    }
    // Without a gate both weights may have one shape. PEFT then wraps the one that begins the experts first.
    const std::string key = std::string(kAdapterKeyPrefix) + experts + std::string(kInner) + ".lora_A.weight";
    if (!inner && files.find(key) == nullptr) {
      throw UserError(fmt::format("the adapter of '{}' fits two weights of the experts", experts),
                      files.main().path().string(), "adapt both of them, or write it with a tensor for each expert");
    }
    return begins_experts(p.spec().kind) == inner ? &p : found;
  }
  return found;
}

/// The ranks and scalings.
void read_scales(const Json& config, const std::filesystem::path& path, LoraOptions& lora) {
  const double rank = config.contains("r") && !config["r"].is_null() ? number_of(config, "r", 0) : 8;
  lora.rank_pattern = read_patterns(config, "rank_pattern", path);
  lora.alpha_pattern = read_patterns(config, "alpha_pattern", path);
  const auto usable = [](double r) { return r >= 1 && r <= kLargestRank && r == std::floor(r); };
  if (!usable(rank) || !std::all_of(lora.rank_pattern.begin(), lora.rank_pattern.end(),
                                    [&](const LoraPattern& pattern) { return usable(pattern.value); })) {
    throw UserError("the adapter has no usable rank r", path.string());
  }
  lora.r = static_cast<int64_t>(rank);
  lora.alpha = number_of(config, "lora_alpha", 8);
  lora.dropout = number_of(config, "lora_dropout", 0);
  if (!is_below_one(lora.dropout)) {
    throw UserError(fmt::format("lora_dropout: {} of the adapter is not in [0, 1) in float32", lora.dropout),
                    path.string(), "correct the file");
  }
  const auto fits = [](double alpha) { return std::isfinite(as_float32(alpha)); };
  if (!fits(lora.alpha) || !std::all_of(lora.alpha_pattern.begin(), lora.alpha_pattern.end(),
                                        [&](const LoraPattern& pattern) { return fits(pattern.value); })) {
    throw UserError("lora_alpha of the adapter is out of range", path.string());
  }
}

/// Reads which modules the tensors of an adapter's files adapt, and what they hold in full.
class AdaptedReader {
 public:
  AdaptedReader(const Json& config, const std::filesystem::path& path, const AdapterFolder& files,
                const ParameterStore& store)
      : config_(config),
        path_(path),
        files_(files),
        store_(store),
        experts_(expert_names(store)),
        whole_(kinds_of_whole(store)) {}

  void read(AdapterDescription& description) {
    for (const auto& [name, entry] : files_.copies()) {
      if (const Parameter* p = find_by_name(store_, name)) check_vocabulary(*entry, *p, files_.main());
    }
    for (const auto& [key, entry] : files_.by_key()) {
      const std::string name = key.substr(std::string_view(kAdapterKeyPrefix).size());
      if (const auto found = whole_.find(name); found != whole_.end()) {
        if (const Parameter* p = find_by_name(store_, name)) check_vocabulary(*entry, *p, files_.main());
        description.whole.insert(found->second);
        adapted_.whole.insert(name);
        continue;
      }
      refuse_foreign(name, *entry, files_.main());
      if (name.ends_with(kLoraA)) read_module(name.substr(0, name.size() - kLoraA.size()), *entry);
    }
    if (files_.kt()) {
      if (files_.kt()->entries().empty()) {
        throw UserError("the file has no tensors", files_.kt()->path().string(),
                        "copy the adapter again, or remove the file if no expert has an adapter");
      }
      add_kt_parts(experts_, *files_.kt(), modules_);
      adapted_.kt_experts = true;
    }
    description.lora.target_modules.assign(modules_.begin(), modules_.end());
    description.lora.target_parameters.assign(parameters_.begin(), parameters_.end());
    if (modules_.empty() && parameters_.empty()) {
      throw UserError("the adapter file holds no LoRA tensors", files_.main().path().string(),
                      "PEFT's keys are like base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    }
  }

  const AdaptedWeights& adapted() const { return adapted_; }

 private:
  void read_module(const std::string& module, const SafetensorsEntry& a) {
    const std::string b_key = std::string(kAdapterKeyPrefix) + module + ".lora_B.weight";
    if (const Parameter* p = find_by_name(store_, module + ".weight")) {
      if (const SafetensorsEntry* b = files_.find(b_key)) check_vocabulary(*b, *p, files_.main());
      modules_.insert(module);
      adapted_.parts.insert({p, 0});
    } else if (const ExpertNames* names = expert_part(experts_, module)) {
      modules_.insert(names->glob());
      adapted_.parts.insert({names->weight, names->out_begin});
    } else if (const Parameter* fused = shared_target(store_, module, files_, a, files_.at(b_key))) {
      refuse_old_target_parameters(config_, path_);
      parameters_.insert(fused->name());
      for (const ExpertPart& part : parts_of(*fused)) adapted_.parts.insert({fused, part.out_begin});
    } else {
      throw UserError("the adapter adapts '" + module + "', which this model does not have",
                      files_.main().path().string(), "use the base model that the adapter was trained on");
    }
  }

  const Json& config_;
  const std::filesystem::path& path_;
  const AdapterFolder& files_;
  const ParameterStore& store_;
  std::vector<ExpertNames> experts_;
  std::map<std::string, ParameterKind> whole_;
  std::set<std::string> modules_, parameters_;
  AdaptedWeights adapted_;
};

}  // namespace

AdapterDescription describe_adapter(const std::filesystem::path& directory, const ParameterStore& store) {
  const std::filesystem::path config_path = directory / "adapter_config.json";
  const Json config = read_adapter_config(config_path);
  AdapterDescription description;
  description.warnings = check_adapter_keys(config, config_path);
  check_kt_manifest(directory);
  const AdapterFolder files(directory, store);
  LoraOptions& lora = description.lora;
  lora.of_files = true;
  read_scales(config, config_path, lora);
  lora.largest_rank = files.largest_rank();
  for (const AdapterKind& kind : adapter_kinds()) kind.read(config, lora);
  lora.exclude_modules = excluded_of_peft(config, config_path);
  AdaptedReader reader(config, config_path, files, store);
  reader.read(description);
  const std::vector<std::string> warnings = compare_targets(config, config_path, store, reader.adapted());
  description.warnings.insert(description.warnings.end(), warnings.begin(), warnings.end());
  return description;
}

namespace {

/// Tied weights must have equal values.
void check_tied(const AdapterFolder& files, const ParameterStore& store, const AdapterTensor& tensor,
                const std::vector<float>& values) {
  for (const std::string& name : whole_names(store, tensor.parameter())) {
    const std::string key = kAdapterKeyPrefix + name;
    const SafetensorsEntry* other = files.find(key);
    if (key == tensor.key || (other && files.main().read_floats(*other) == values)) continue;
    throw UserError(fmt::format("the adapter trains '{}' apart from '{}', which the model ties", tensor.key, key),
                    files.main().path().string(),
                    "set tie_word_embeddings: false in a copy of the model, which then has both");
  }
}

[[noreturn]] void wrong_shape(const std::filesystem::path& file, const SafetensorsEntry& entry,
                              const std::vector<int64_t>& expected) {
  const bool of_vocabulary =
      entry.name.find("embed_tokens") != std::string::npos || entry.name.find("lm_head") != std::string::npos;
  if (of_vocabulary && !entry.shape.empty() && !expected.empty() && entry.shape.front() != expected.front()) {
    throw UserError(fmt::format("the adapter's vocabulary has {} rows and the model's {}: '{}' has the shape {}",
                                entry.shape.front(), expected.front(), entry.name, entry.shape_text()),
                    file.string(),
                    "use the base model that the adapter was trained on, with the tokens that were added to it");
  }
  throw UserError(fmt::format("'{}' has the shape {}, the model and rank need [{}]", entry.name, entry.shape_text(),
                              fmt::join(expected, ", ")),
                  file.string(), "check r and rank_pattern in adapter_config.json, and the base model");
}

/// Reads one expert's matrix from KTransformers' tensor of all experts; false if the file does not have it.
bool load_from_kt(const SafetensorsFile* file, const AdapterTensor& tensor, std::set<std::string>& used) {
  const SafetensorsEntry* entry = file && !tensor.kt_key.empty() ? file->find(tensor.kt_key) : nullptr;
  if (entry == nullptr) return false;
  const std::vector<int64_t> expected = {tensor.parameter().shape()[0], tensor.dims[0], tensor.dims[1]};
  if (entry->shape != expected) wrong_shape(file->path(), *entry, expected);
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  file->read_floats(*entry, tensor.blocks.front().in_parameter.begin, values.data(), tensor.numel());
  scatter(tensor, values);
  used.insert(tensor.kt_key);
  return true;
}

/// Reads those elements of a run of a parameter's elements that this rank keeps.
void load_run(const AdapterWeights& file, const SafetensorsEntry& entry, const AdapterTensor& tensor) {
  Parameter& parameter = tensor.parameter();
  const int64_t begin = tensor.blocks.front().in_parameter.begin;
  const Slice here = parameter.value().stored().slice.intersect({begin, tensor.numel()});
  if (here.count == 0) return;
  std::vector<float> values(static_cast<size_t>(here.count));
  file.read_floats(entry, here.begin - begin, values.data(), here.count);
  write_values(parameter, here.begin, values.data(), here.count);
}

void refuse_unused(const std::filesystem::path& file, const std::vector<SafetensorsEntry>& entries,
                   const std::set<std::string>& used) {
  for (const SafetensorsEntry& entry : entries) {
    if (!used.contains(entry.name)) {
      throw UserError("'" + entry.name + "' of the adapter has no place in the model", file.string(),
                      "it is neither a LoRA of a linear weight or expert, nor a router, norm, embedding or head");
    }
  }
}

}  // namespace

void check_copies(const std::filesystem::path& directory, const ParameterStore& store, const Checkpoint& base,
                  const CheckpointMap& map) {
  const AdapterFolder files(directory, store);
  ReadScratch scratch;
  for (const auto& [name, entry] : files.copies()) {
    const Parameter* p = find_by_name(store, name);
    const auto layout = p ? map.layouts.find(p) : map.layouts.end();
    if (layout == map.layouts.end() || layout->second.size() != 1) {
      throw UserError(fmt::format("'{}' is a copy of a weight that this model does not have", entry->name),
                      files.main().path().string(), "use the base model that the adapter was trained on");
    }
    std::vector<std::string> missing;
    const std::optional<StoredTensor> stored = StoredTensor::find(base, layout->second.front(), missing);
    if (!stored || entry->shape != dims_of(p->shape())) wrong_shape(files.main().path(), *entry, dims_of(p->shape()));
    std::vector<float> copy = files.main().read_floats(*entry);
    // What added rows began with does not matter where the adapter holds all rows.
    const auto grown = base.grown(layout->second.front().name);
    if (grown && files.find(kAdapterKeyPrefix + name)) copy.resize(static_cast<size_t>(grown->own_elements()));
    std::vector<float> own(copy.size());
    stored->read(scratch, 0, static_cast<int64_t>(own.size()), DType::kF32, reinterpret_cast<std::byte*>(own.data()));
    // A program may have held the model in 16 bits and saved the copy in 32.
    const auto equal = [&](const auto& rounded) {
      return std::equal(own.begin(), own.end(), copy.begin(), [&](float a, float b) { return rounded(a) == b; });
    };
    if (equal([](float value) { return value; }) ||
        equal([](float value) { return static_cast<float>(BFloat16(value)); }) ||
        equal([](float value) { return static_cast<float>(Float16(value)); })) {
      continue;
    }
    throw UserError(
        fmt::format("'{}' is a copy of the base model's '{}', and differs from this model's", entry->name, name),
        files.main().path().string(),
        "use the base model that the adapter was trained on; if it was trained in full, have PEFT save it as "
        "one of modules_to_save");
  }
}

void load_adapter(const std::filesystem::path& directory, ParameterStore& store, FileLedger* ledger) {
  const AdapterFolder files(directory, store, ledger);
  const AdapterWeights& file = files.main();
  std::set<std::string> used;  // names of used tensors in their files
  const std::vector<AdapterTensor> as_files = adapter_tensors(store, ExpertNaming::kFile),
                                   canonical = adapter_tensors(store, ExpertNaming::kCanonical);
  for (size_t i = 0; i < as_files.size(); ++i) {
    const AdapterTensor& tensor = as_files[i];
    const SafetensorsEntry* entry = files.find(tensor.key);
    if (!entry) entry = files.find(canonical[i].key);
    if (!entry) {
      if (load_from_kt(files.kt(), tensor, used)) continue;
      // A router that the run trains but the adapter does not contain keeps the base model's values.
      if (tensor.whole) continue;
      throw UserError("the adapter lacks the tensor '" + tensor.key + "'", file.path().string());
    }
    if (entry->shape != tensor.dims) wrong_shape(file.path(), *entry, tensor.dims);
    used.insert(entry->name);
    if (tensor.is_run() && !tensor.whole) {
      load_run(file, *entry, tensor);
      continue;
    }
    const std::vector<float> values = file.read_floats(*entry);
    if (tensor.whole) check_tied(files, store, tensor, values);
    scatter(tensor, values);
  }
  for (const auto& [name, copy] : files.copies()) used.insert(copy->name);  // check_copies() compares them
  for (const SafetensorsEntry* entry : files.doubles()) used.insert(entry->name);
  refuse_unused(file.path(), file.entries(), used);
  if (files.kt()) refuse_unused(files.kt()->path(), files.kt()->entries(), used);
}

}  // namespace hone
