#include "weights/adapter.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "core/error.h"
#include "core/json.h"
#include "core/untrusted_json.h"
#include "params/adapter_kind.h"
#include "weights/adapter_config.h"
#include "weights/adapter_layout.h"
#include "weights/kt_manifest.h"
#include "weights/model_folder.h"
#include "weights/safetensors.h"

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

void refuse_unsupported(const Json& config, const std::filesystem::path& path) {
  const auto allowed = [&](const char* key, const Json& neutral) {
    if (!config.contains(key) || config[key].is_null() || config[key] == neutral) return;
    throw UserError(fmt::format("the adapter uses {}: {}, which is not supported", key, config[key].dump()),
                    path.string());
  };
  allowed("peft_type", "LORA");
  allowed("bias", "none");
  allowed("lora_bias", false);
  allowed("fan_in_fan_out", false);
  allowed("layer_replication", Json(nullptr));
}

/// The tensors of an adapter folder by PEFT's keys, independent of the program that wrote them.
class AdapterFolder {
 public:
  explicit AdapterFolder(const std::filesystem::path& directory, FileLedger* ledger = nullptr)
      : main_(finished(directory) / "adapter_model.safetensors") {
    main_.record_reads(ledger);
    if (std::filesystem::exists(directory / kKtFile)) kt_.emplace(directory / kKtFile).record_reads(ledger);
    for (const SafetensorsEntry& entry : main_.entries()) {
      by_key_[key_of(entry.name)] = &entry;
    }
  }

  const SafetensorsFile& main() const { return main_; }
  /// KTransformers' tensors of all experts of a layer; null if there is no such file.
  const SafetensorsFile* kt() const { return kt_ ? &*kt_ : nullptr; }
  const std::map<std::string, const SafetensorsEntry*>& by_key() const { return by_key_; }
  const SafetensorsEntry* find(const std::string& key) const {
    const auto found = by_key_.find(key);
    return found == by_key_.end() ? nullptr : found->second;
  }
  const SafetensorsEntry& at(const std::string& key) const {
    if (const SafetensorsEntry* entry = find(key)) return *entry;
    throw UserError("the file has no tensor '" + key + "'", main_.path().string());
  }

  /// Rows of the largest A: an upper bound of the rank, which is lower if experts share an A.
  int64_t largest_rank() const {
    int64_t rows = 1;
    const auto see = [&](const SafetensorsFile& file) {
      for (const SafetensorsEntry& entry : file.entries()) {
        const bool a = entry.name.ends_with(kLoraA) || entry.name.ends_with("_lora_a");
        if (a && entry.shape.size() >= 2) rows = std::max(rows, entry.shape[entry.shape.size() - 2]);
      }
    };
    see(main_);
    if (kt_) see(*kt_);
    return rows;
  }

 private:
  static const std::filesystem::path& finished(const std::filesystem::path& directory) {
    require_finished(directory);
    return directory;
  }

  /// PEFT's key. Files for servers have no prefix, and the modules that KTransformers replaced are in an orig_module.
  static std::string key_of(std::string name) {
    constexpr std::string_view kReplaced = ".orig_module";
    for (size_t at = 0; (at = name.find(kReplaced, at)) != std::string::npos;) name.erase(at, kReplaced.size());
    return name.starts_with(kAdapterKeyPrefix) ? name : kAdapterKeyPrefix + name;
  }

  SafetensorsFile main_;
  std::optional<SafetensorsFile> kt_;
  std::map<std::string, const SafetensorsEntry*> by_key_;
};

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
    if (!value.is_number() || !(value.get<double>() > 0)) refuse();
    patterns.push_back({pattern, value});
  }
  return patterns;
}

const Parameter* find_by_name(const ParameterStore& store, const std::string& name) {
  for (const Parameter& p : store.all()) {
    if (p.name() == name) return &p;
  }
  return nullptr;
}

/// Kinds of the weights saved in full, by the names that their tensors may have.
std::map<std::string, ParameterKind> kinds_of_whole(const ParameterStore& store) {
  std::map<std::string, ParameterKind> kinds;
  for (const Parameter& p : store.all()) {
    if (!can_be_saved_whole(p.kind())) continue;
    for (const std::string& name : whole_names(store, p)) kinds.emplace(name, p.kind());
  }
  return kinds;
}

/// Names of the modules of one projection of a layer's experts: the expert's number is between prefix and leaf.
struct ExpertNames {
  std::string file_prefix, file_leaf;  // "….block_sparse_moe.experts.", ".w1"
  std::string own_prefix, own_leaf;    // "….mlp.experts.", ".gate_proj"
  std::string serving_prefix;          // "model.layers.3.mlp.experts."
  std::string kt_keys[2];              // "layers.3.experts.gate_lora_a", …_b

  std::string glob() const { return file_prefix + "*" + file_leaf; }
  static bool is_expert(const std::string& module, const std::string& prefix, const std::string& leaf) {
    if (!module.starts_with(prefix) || !module.ends_with(leaf) || module.size() <= prefix.size() + leaf.size())
      return false;
    const std::string number = module.substr(prefix.size(), module.size() - prefix.size() - leaf.size());
    return std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  }
  bool have(const std::string& module) const {
    return is_expert(module, file_prefix, file_leaf) || is_expert(module, own_prefix, own_leaf) ||
           is_expert(module, serving_prefix, own_leaf);
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
                       fmt::format("model.layers.{}.mlp.experts.", p.layer()),
                       {kt_key(p, part.name, true), kt_key(p, part.name, false)}});
    }
  }
  return names;
}

/// If `module` is a projection of one expert: the glob that selects it in all experts of the layer in attach_lora.
std::optional<std::string> expert_part_glob(const std::vector<ExpertNames>& experts, const std::string& module) {
  for (const ExpertNames& names : experts) {
    if (names.have(module)) return names.glob();
  }
  return std::nullopt;
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
const Parameter* shared_target(const ParameterStore& store, const std::string& module, const SafetensorsEntry& a,
                               const SafetensorsEntry& b) {
  const size_t base = module.rfind(".base_layer");
  const std::string experts = base == std::string::npos ? module : module.substr(0, base);
  for (const Parameter& p : store.all()) {
    if (is_experts(p) && experts_module(p) == experts && a.shape.size() == 2 && b.shape.size() == 2 &&
        a.shape[1] == p.shape()[2] && b.shape[0] == p.shape()[1]) {
      return &p;
    }
  }
  return nullptr;
}

}  // namespace

AdapterDescription describe_adapter(const std::filesystem::path& directory, const ParameterStore& store) {
  const std::filesystem::path config_path = directory / "adapter_config.json";
  const Json config = read_adapter_config(config_path);
  refuse_unsupported(config, config_path);
  check_kt_manifest(directory);
  const AdapterFolder files(directory);
  const SafetensorsFile& file = files.main();
  const auto number = [&](const char* key, double fallback) {
    return config.contains(key) && config[key].is_number() ? config[key].get<double>() : fallback;
  };
  AdapterDescription description;
  LoraOptions& lora = description.lora;
  const double rank = number("r", 0);
  lora.rank_pattern = read_patterns(config, "rank_pattern", config_path);
  lora.alpha_pattern = read_patterns(config, "alpha_pattern", config_path);
  lora.of_files = true;
  const auto usable = [](double r) { return r >= 1 && r <= kLargestRank && r == std::floor(r); };
  if (!usable(rank) || !std::all_of(lora.rank_pattern.begin(), lora.rank_pattern.end(),
                                    [&](const LoraPattern& pattern) { return usable(pattern.value); })) {
    throw UserError("the adapter has no usable rank r", config_path.string());
  }
  lora.r = static_cast<int64_t>(rank);
  lora.largest_rank = files.largest_rank();
  lora.alpha = number("lora_alpha", 8);
  lora.dropout = number("lora_dropout", 0);
  if (!(lora.dropout >= 0 && lora.dropout < 1)) {
    throw UserError(fmt::format("lora_dropout: {} of the adapter is not in [0, 1)", lora.dropout), config_path.string(),
                    "correct the file");
  }
  if (!std::isfinite(lora.alpha)) throw UserError("lora_alpha of the adapter is out of range", config_path.string());
  for (const AdapterKind& kind : adapter_kinds()) kind.read(config, lora);
  lora.exclude_modules = excluded_of_peft(config, config_path);
  const std::vector<ExpertNames> experts = expert_names(store);
  std::set<std::string> modules, parameters;
  const std::map<std::string, ParameterKind> whole = kinds_of_whole(store);
  for (const auto& [key, entry] : files.by_key()) {
    const std::string name = key.substr(std::string_view(kAdapterKeyPrefix).size());
    if (const auto found = whole.find(name); found != whole.end()) {
      description.whole.insert(found->second);
      continue;
    }
    if (!name.ends_with(kLoraA)) continue;
    const std::string module = name.substr(0, name.size() - kLoraA.size());
    if (find_by_name(store, module + ".weight")) {
      modules.insert(module);
    } else if (const auto glob = expert_part_glob(experts, module)) {
      modules.insert(*glob);
    } else if (const Parameter* p = shared_target(
                   store, module, *entry, files.at(std::string(kAdapterKeyPrefix) + module + ".lora_B.weight"))) {
      refuse_old_target_parameters(config, config_path);
      parameters.insert(p->name());
    } else {
      throw UserError("the adapter adapts '" + module + "', which this model does not have", file.path().string(),
                      "use the base model that the adapter was trained on");
    }
  }
  if (files.kt()) add_kt_parts(experts, *files.kt(), modules);
  lora.target_modules.assign(modules.begin(), modules.end());
  lora.target_parameters.assign(parameters.begin(), parameters.end());
  if (modules.empty() && parameters.empty()) {
    throw UserError("the adapter file holds no LoRA tensors", file.path().string());
  }
  return description;
}

namespace {

/// Tied weights must have equal values.
void check_tied(const SafetensorsFile& file, const ParameterStore& store, const AdapterTensor& tensor,
                const std::vector<float>& values) {
  for (const std::string& name : whole_names(store, tensor.parameter())) {
    const std::string key = kAdapterKeyPrefix + name;
    if (key == tensor.key || (file.find(key) && file.read_floats(key) == values)) continue;
    throw UserError(fmt::format("the adapter trains '{}' apart from '{}', which the model ties", tensor.key, key),
                    file.path().string(), "set tie_word_embeddings: false in a copy of the model, which then has both");
  }
}

[[noreturn]] void wrong_shape(const SafetensorsFile& file, const SafetensorsEntry& entry,
                              const std::vector<int64_t>& expected) {
  throw UserError(fmt::format("'{}' has the shape {}, the model and rank need [{}]", entry.name, entry.shape_text(),
                              fmt::join(expected, ", ")),
                  file.path().string(), "check lora_r and the base model");
}

/// Reads one expert's matrix from KTransformers' tensor of all experts; false if the file does not have it.
bool load_from_kt(const SafetensorsFile* file, const AdapterTensor& tensor, std::set<std::string>& used) {
  const SafetensorsEntry* entry = file && !tensor.kt_key.empty() ? file->find(tensor.kt_key) : nullptr;
  if (entry == nullptr) return false;
  const std::vector<int64_t> expected = {tensor.parameter().shape()[0], tensor.dims[0], tensor.dims[1]};
  if (entry->shape != expected) wrong_shape(*file, *entry, expected);
  std::vector<float> values(static_cast<size_t>(tensor.numel()));
  file->read_floats(*entry, tensor.blocks.front().in_parameter.begin, values.data(), tensor.numel());
  scatter(tensor, values);
  used.insert(tensor.kt_key);
  return true;
}

/// Reads those elements of a run of a parameter's elements that this rank keeps.
void load_run(const SafetensorsFile& file, const SafetensorsEntry& entry, const AdapterTensor& tensor) {
  Parameter& parameter = tensor.parameter();
  const int64_t begin = tensor.blocks.front().in_parameter.begin;
  const Slice here = parameter.stored().slice.intersect({begin, tensor.numel()});
  if (here.count == 0) return;
  std::vector<float> values(static_cast<size_t>(here.count));
  file.read_floats(entry, here.begin - begin, values.data(), here.count);
  write_values(parameter, here.begin, values.data(), here.count);
}

void refuse_unused(const SafetensorsFile& file, const std::set<std::string>& used) {
  for (const SafetensorsEntry& entry : file.entries()) {
    if (!used.contains(entry.name)) {
      throw UserError("the adapter's tensor '" + entry.name + "' has no place in the model", file.path().string());
    }
  }
}

}  // namespace

void load_adapter(const std::filesystem::path& directory, ParameterStore& store, FileLedger* ledger) {
  const AdapterFolder files(directory, ledger);
  const SafetensorsFile& file = files.main();
  std::set<std::string> used;  // names of used tensors in their files
  const std::vector<AdapterTensor> as_files = adapter_tensors(store, ExpertNaming::kFile),
                                   canonical = adapter_tensors(store, ExpertNaming::kCanonical),
                                   serving = adapter_tensors(store, ExpertNaming::kServing);
  for (size_t i = 0; i < as_files.size(); ++i) {
    const AdapterTensor& tensor = as_files[i];
    const SafetensorsEntry* entry = nullptr;
    for (const std::string& key : {tensor.key, canonical[i].key, kAdapterKeyPrefix + serving[i].key}) {
      if (entry == nullptr) entry = files.find(key);
    }
    if (!entry) {
      if (load_from_kt(files.kt(), tensor, used)) continue;
      // A router that the run trains but the adapter does not contain keeps the base model's values.
      if (tensor.whole) continue;
      throw UserError("the adapter lacks the tensor '" + tensor.key + "'", file.path().string());
    }
    if (entry->shape != tensor.dims) wrong_shape(file, *entry, tensor.dims);
    used.insert(entry->name);
    if (tensor.is_run() && !tensor.whole) {
      load_run(file, *entry, tensor);
      continue;
    }
    const std::vector<float> values = file.read_floats(entry->name);
    if (tensor.whole) check_tied(file, store, tensor, values);
    scatter(tensor, values);
  }
  refuse_unused(file, used);
  if (files.kt()) refuse_unused(*files.kt(), used);
}

}  // namespace hone
