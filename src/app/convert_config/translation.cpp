#include "app/convert_config/translation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <map>
#include <optional>
#include <set>

#include "app/convert_config/dataset_entries.h"
#include "app/convert_config/tool_habits.h"
#include "config/alias_rules.h"
#include "config/config_value.h"
#include "config/resolve.h"
#include "config/resolved_yaml.h"
#include "core/base/error.h"
#include "core/base/printable.h"
#include "text/named_templates.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

/// Whether a value is null, false, 0, none, "", empty or `neutral`.
bool says_nothing(const ConfigNode& node, const std::string& neutral) {
  if (node.kind != Kind::kScalar) return node.items.empty() && node.members.empty();
  const std::string text = in_lower_case(node.text);
  double number = 1;
  const bool zero = parse_number(text, number) && number == 0;
  return text.empty() || text == "false" || text == "no" || text == "none" || text == "null" || zero ||
         (!neutral.empty() && text == in_lower_case(neutral));
}

/// Whether a key only affects storage, output or display: training is the same without it.
bool is_beside_the_mathematics(const KeySpec& key) {
  static const std::set<std::string> groups = {"Ranks and placement", "Output and metrics", "Checkpoints", "Generation",
                                               "After training"};
  return key.name == "gradient_checkpointing" || (groups.contains(key.group) && key.name != "stage");
}

/// The message of an error and its way out.
std::string with_fix(const UserError& error) {
  std::string text = error.message();
  if (error.fix().empty()) return text;
  if (text.ends_with('.')) text.pop_back();
  return fmt::format("{}; {}", text, error.fix());
}

class Translator {
 public:
  Translator(const Tool& tool, const TranslationSource& source) : tool_(tool), source_(source) {}

  Translation run() {
    result_.look = source_.look;
    walk(tool_, source_.root, "");
    choose();
    if (trains_by_megatron(source_.root) && !switch_of_balance_ && experts_of_model().possible)
      switch_of_balance_ = Remark{"the balance of the routers", tool_.title, ""};
    balance_as_the_model();
    const Experts experts = experts_of_model();
    state_habits(tool_, source_, experts, result_);
    add_defaults();
    finish_habits(tool_, source_, experts, result_);
    if (!tool_.note.empty()) result_.look.push_back({"data", tool_.title, tool_.note});
    return std::move(result_);
  }

 private:
  void walk(const Tool& tool, const ConfigNode& mapping, const std::string& path) {
    for (const auto& [raw, value] : mapping.members) {
      const std::string name = config_name(raw);
      entry(tool, path.empty() ? name : path + "." + name, path.empty() ? raw : path + "." + raw, value);
    }
    for (size_t i = 0; i < mapping.items.size(); ++i) {
      entry(tool, fmt::format("{}.{}", path, i), fmt::format("{}.{}", path, i), mapping.items[i]);
    }
  }

  void entry(const Tool& tool, const std::string& path, const std::string& raw, const ConfigNode& value) {
    const std::string name = path.substr(path.rfind('.') + 1);
    const bool renamed = path == "kt_config." + name && !name.starts_with("kt_") &&
                         (find_rule(tool, "kt_" + name) || find_key(schema(), "", "kt_" + name).key);
    if (renamed) {
      return entry(tool, "kt_config.kt_" + name, raw, value);  // KTransformers' older names
    }
    const FoundKey known = find_key(schema(), "", name);
    const bool data = known.key && known.key->type == KeyType::kDatasets;
    const ToolRule* rule = find_rule(tool, path);
    const bool list = value.kind == Kind::kSequence && rule && rule->kind == ToolRule::Kind::kMeans;
    if (value.kind >= Kind::kSequence && !data && !list && has_member_rules(tool, path)) {
      return walk(tool, value, path);
    }
    if (!rule && name != path) rule = find_rule(tool, name);
    if (rule && rule->kind == ToolRule::Kind::kFile) return sharding(tool, *rule, path, raw, value);
    if (rule && !(value.kind == Kind::kMapping && rule->kind == ToolRule::Kind::kMeans)) {
      return by_rule(*rule, raw, value);
    }
    if (tool.base.empty() && &tool != &tool_) return unknown(tool, raw, value);
    by_schema(tool, path, name, raw, value);
  }

  /// Applies a rule. For enable_thinking: false, LLaMA-Factory puts an empty thinking block before the answer; with
  /// true the model learns it.
  void by_rule(const ToolRule& rule, const std::string& raw, const ConfigNode& value) {
    const Remark remark{said(raw, value), value.where, rule.why};
    if (value.kind == Kind::kNull) return result_.no_effect.push_back({raw, value.where, "it is empty"});
    if (value.kind == Kind::kScalar && value.text == "auto" && rule.kind != ToolRule::Kind::kNoEffect) {
      return result_.no_effect.push_back({remark.said, remark.where, "other settings say it"});
    }
    if (rule.kind == ToolRule::Kind::kMeans) {
      if (rule.key->name == "base_weight_dtype" && rule.name.find("nonexpert") != std::string::npos) {
        keep_experts_in_dtype(rule, raw, value);
      }
      if (rule.name == "enable_thinking") state({&key_spec("learn_empty_thinking"), nullptr}, raw, value);
      const bool muon_of_v1 = rule.name == "optim_config.name" && value.text == "muon";
      if (muon_of_v1 || (rule.name == "use_muon" && value.text == "true")) return step_by_muon(raw, value);
      if (rule.name == "batching_strategy" && value.text.starts_with("dynamic")) {
        result_.look.push_back(
            {remark.said, remark.where,
             "a step has about as many samples: packs are filled with tokens here, in another order"});
      }
      return state({rule.key, &rule.alias}, raw, value);
    }
    if (rule.name == "plugins") return plugins(raw, value);
    if (is_switch_of_balance(rule, value)) {
      switch_of_balance_ = remark;
      return;
    }
    if (rule.kind == ToolRule::Kind::kNoEffect) return result_.no_effect.push_back(remark);
    if (rule.name == "stage" && value.text == "pt") return go_on_with_texts(raw, value);
    if (says_nothing(value, "")) return result_.no_effect.push_back({remark.said, remark.where, "it is off"});
    if (says_nothing(value, rule.neutral)) {
      return result_.no_effect.push_back({remark.said, remark.where, "Hone does just that"});
    }
    remarks_of(rule.kind).push_back(remark);
  }

  /// Axolotl's plugins: those that change no result have no effect.
  void plugins(const std::string& raw, const ConfigNode& value) {
    for (const ConfigNode& plugin : value.listed()) {
      const bool harmless = is_harmless_plugin(plugin.text);
      const char* why = harmless ? "what it brings is stated by keys of its own"
                                 : "what it changes is not in this version: take it out where it is off";
      (harmless ? result_.no_effect : result_.refused).push_back({said(raw, plugin), plugin.where, why});
    }
  }

  /// Whether output_router_logits of a model's configuration is on: transformers then adds the load-balancing loss.
  static bool is_switch_of_balance(const ToolRule& rule, const ConfigNode& value) {
    bool on = false;
    return rule.name.ends_with("output_router_logits") && value.kind == Kind::kScalar && parse_bool(value.text, on) &&
           on;
  }

  /// States the model's own coefficient of the load-balancing loss if its configuration turns that loss on, from
  /// config.json where it is here.
  void balance_as_the_model() {
    if (!switch_of_balance_ || states("router_aux_loss_coef")) return;
    std::optional<double> own;
    for (const TranslatedKey& stated : result_.stated) {
      if (stated.key->name != "model_name_or_path") continue;
      const std::filesystem::path file = std::filesystem::path(stated.value.get<std::string>()) / "config.json";
      if (std::filesystem::is_regular_file(file)) {
        const ConfigNode config = read_config_file(file.string(), Variables::kKeep);
        const ConfigNode* coefficient = config.find("router_aux_loss_coef");
        double number = 0;
        if (coefficient && parse_number(coefficient->text, number)) own = number;
      }
    }
    if (own) {
      result_.stated.push_back(
          {&key_spec("router_aux_loss_coef"), *own, switch_of_balance_->said + ", the model's own coefficient"});
    } else {
      result_.look.push_back({switch_of_balance_->said, switch_of_balance_->where,
                              "router_aux_loss_coef is the model's: state that of its config.json"});
    }
  }

  /// Axolotl's quantised base of all weights but those of routed experts.
  void keep_experts_in_dtype(const ToolRule& rule, const std::string& raw, const ConfigNode& value) {
    const Rewritten meaning = rule.alias.rewrite(value);
    const bool dense = meaning.emphasis == Emphasis::kNothing || says_nothing(meaning.value, "");
    if (!dense) state_as("base_weight_keep", "re:\\.experts\\.", raw, value);
  }

  /// LLaMA-Factory's stage pt: texts (set in dataset_entries), concatenated and cut into pieces.
  void go_on_with_texts(const std::string& raw, const ConfigNode& value) {
    state_as("packing", "true", raw, value);
    state_as("overlength", "split", raw, value);
    result_.look.push_back(
        {said(raw, value), value.where, "texts need not run on from one to the next: they do not see each other here"});
  }

  /// LLaMA-Factory's use_muon: the rates of arXiv:2502.16982, and weight decay of all parameters.
  void step_by_muon(const std::string& raw, const ConfigNode& value) {
    state_as("optim", "muon", raw, value);
    state_as("optim_args", "adjust_lr_fn=match_rms_adamw", raw, value);
    state_as("decay_norms_and_biases", "true", raw, value);
    result_.look.push_back({said(raw, value), value.where,
                            "LLaMA-Factory steps routers by Muon, too, and stacked experts (transformers 5) by AdamW"});
  }

  /// States a key of Hone for a statement `raw` of the source.
  void state_as(const char* key, const char* text, const std::string& raw, const ConfigNode& value) {
    ConfigNode node = value;
    node.text = text;
    state({&key_spec(key), nullptr}, raw, node, false, &value);
  }

  std::vector<Remark>& remarks_of(ToolRule::Kind kind) {
    if (kind == ToolRule::Kind::kLook) return result_.look;
    return kind == ToolRule::Kind::kMissing ? result_.missing : result_.refused;
  }

  /// Translates a mapping or a file about sharding.
  void sharding(const Tool& tool, const ToolRule& rule, const std::string& path, const std::string& raw,
                const ConfigNode& value) {
    const Tool& table = *find_tool(rule.tool);
    const std::string name = path.substr(path.rfind('.') + 1);
    if (value.kind == Kind::kMapping) return walk(table, value, has_member_rules(table, name) ? name : "");
    if (value.kind == Kind::kScalar) {
      const std::string written = known_environment(value.text);
      for (const std::filesystem::path& file :
           {std::filesystem::path(source_.folder) / written, std::filesystem::path(written)}) {
        if (!std::filesystem::is_regular_file(file)) continue;
        result_.no_effect.push_back({said(raw, value), value.where, "it was read, see below"});
        return walk(table, read_config_file(file.string(), Variables::kKeep), "");
      }
      if (written.find("${") != std::string::npos) {
        result_.look.push_back({said(raw, value), value.where,
                                "the variable is not set, so the file's settings are not known: set it and convert "
                                "again"});
        return;
      }
    }
    const bool is_key = find_key(schema(), "", name).key != nullptr;
    if (value.kind == Kind::kScalar && (!is_key || value.text.ends_with(".json"))) {
      result_.look.push_back({said(raw, value), value.where, "the file does not exist, so its settings are not known"});
    }
    if (is_key) by_schema(tool, path, name, raw, value);
  }

  void by_schema(const Tool& tool, const std::string& path, const std::string& name, const std::string& raw,
                 const ConfigNode& value) {
    const std::string above = path.substr(0, path.size() - name.size() - (path == name ? 0 : 1));
    const FoundKey found = find_key(schema(), above.substr(above.rfind('.') + 1), name);
    const bool mapped_key = found.key && takes_mapping(*found.key, value);
    if (is_section(name) && value.kind == Kind::kMapping && !mapped_key) return walk(tool, value, path);
    if (found.key) return state(found, raw, value);
    if (value.kind != Kind::kNull || !(is_section(name) || has_member_rules(tool, path))) unknown(tool, raw, value);
  }

  void unknown(const Tool& tool, const std::string& raw, const ConfigNode& value) {
    if (value.kind == Kind::kNull) return result_.no_effect.push_back({raw, value.where, "it is empty"});
    result_.refused.push_back({said(raw, value), value.where,
                               fmt::format("no key of {} that is known here.{}", tool.title,
                                           did_you_mean(config_name(raw), writable_names(schema())))});
  }

  /// States what `value` means for the key, and for the other keys that an alias is about. `beside`: it is one of
  /// these. `written`: what the source says, if it is not `value`.
  void state(const FoundKey& found, const std::string& raw, const ConfigNode& value, bool beside = false,
             const ConfigNode* written = nullptr) {
    const KeySpec& key = *found.key;
    const size_t others = found.alias ? found.alias->also.size() : 0;
    for (size_t i = 0; i < others; ++i) {
      const AlsoStates& also = found.alias->also[i];
      const Alias meaning{found.alias->name, also.rewrite};
      state({&key_spec(also.key), &meaning}, raw, value, true);
    }
    if (key.status == KeyStatus::kNoEffect) {
      return result_.no_effect.push_back({said(raw, value), value.where, key.help});
    }
    const bool data = key.type == KeyType::kDatasets;
    if (key.name == "chat_template" && names_a_template(value) && !is_built_in(found, value)) {
      return result_.look.push_back({said(raw, value), value.where, "the model's own chat template is used instead"});
    }
    try {
      std::optional<Statement> statement = read_statement(
          found, raw,
          data ? dataset_entries({tool_, source_.root, source_.folder}, as_rewritten(found, value), result_)
               : in_hones_terms(key, with_known_variables(found, value)));
      if (statement) {
        statement->said = said(raw, written ? *written : value);
        statements_[statement->key->name].push_back(std::move(*statement));
      } else if (value.kind != Kind::kNull && !beside) {
        result_.no_effect.push_back({said(raw, value), value.where, "it says nothing, or that something is off"});
      }
    } catch (const UserError& error) {
      const Remark remark{said(raw, value), value.where, with_fix(error)};
      (is_beside_the_mathematics(key) ? result_.missing : result_.refused).push_back(remark);
    }
  }

  /// The value in the form of the key itself: repository.path is an entry of type code.
  static ConfigNode as_rewritten(const FoundKey& found, const ConfigNode& value) {
    return found.alias && found.alias->rewrite ? found.alias->rewrite(value).value : value;
  }

  /// Replaces the variables in the value of a key that is not text, or that a rule rewrites. UserError for one that is
  /// not set.
  static ConfigNode with_known_variables(const FoundKey& found, const ConfigNode& value) {
    const bool text = found.key->type == KeyType::kString || found.key->type == KeyType::kPath;
    const bool kept = text && !(found.alias && found.alias->rewrite);
    if (kept || value.text.find("${") == std::string::npos) return value;
    ConfigNode known = value;
    known.text = expand_environment(value.text, value.where);
    return known;
  }

  /// A value with another form in Hone: PEFT's expressions, and moments of 4 bits, which have 8 here.
  ConfigNode in_hones_terms(const KeySpec& key, const ConfigNode& value) {
    static const Rewrite modules = modules_of_peft();
    if (key.name == "lora_target_modules") return modules(value).value;
    if (key.name != "optim" || !value.text.starts_with("adamw") || !value.text.ends_with("_4bit")) return value;
    result_.look.push_back(
        {said("optim", value), value.where, "moments of 8 bits learn what those of 4 do: they are nearer to 32"});
    ConfigNode wider = value;
    wider.text = "adamw_8bit";
    return wider;
  }

  /// Whether a name of a template means one that is built in here, or the model's own.
  static bool is_built_in(const FoundKey& found, const ConfigNode& value) {
    const bool rewritten = found.alias && found.alias->rewrite;
    const std::string meant = rewritten ? found.alias->rewrite(value).value.text : value.text;
    const std::vector<std::string>& own = found.key->unset_texts;
    return find_named_template(meant) != nullptr || std::find(own.begin(), own.end(), meant) != own.end();
  }

  /// Whether a value is the name of another tool's template, such as chatml or llama3.
  static bool names_a_template(const ConfigNode& value) {
    const bool file = value.text.ends_with(".jinja") || value.text.ends_with(".j2");
    return value.kind == Kind::kScalar && !value.text.empty() && value.text.find('{') == std::string::npos && !file;
  }

  /// Combines statements about one key that the tool permits: adapters' modules and tokens are combined, and of several
  /// switches of recomputation or packing one that is on counts.
  static std::vector<Statement> agreed(const KeySpec& key, std::vector<Statement> all) {
    if (all.size() < 2) return all;
    static const std::set<std::string> joined = {"lora_target_modules", "lora_exclude_modules", "add_special_tokens"};
    if (joined.contains(key.name)) {
      Statement& first = all.front();
      for (size_t i = 1; i < all.size(); ++i) {
        first.said += ", " + all[i].said;
        for (const Json& target : all[i].value) {
          if (std::find(first.value.begin(), first.value.end(), target) == first.value.end())
            first.value.push_back(target);
        }
      }
      all.resize(1);
    } else if (key.name == "gradient_checkpointing" || key.name == "packing") {
      const auto on = std::find_if(all.begin(), all.end(),
                                   [](const Statement& one) { return one.value != "false" && one.value != false; });
      if (on != all.end()) return {*on};
    } else if (key.name == "train_on") {  // a switch that is off says nothing beside another
      const auto other = std::find_if(all.begin(), all.end(),
                                      [&](const Statement& one) { return !(one.value == *key.default_value); });
      if (other != all.end()) std::erase_if(all, [&](const Statement& one) { return one.value == *key.default_value; });
    }
    return all;
  }

  Experts experts_of_model() const {
    const auto found = statements_.find("model_name_or_path");
    const bool stated = found != statements_.end() && found->second.front().value.is_string();
    if (!stated || !source_.has_experts) return {};
    const std::optional<bool> has = source_.has_experts(found->second.front().value.get<std::string>());
    return {has.value_or(true), has.value_or(false)};
  }

  /// Adds a remark: "all" means different modules in different versions of transformers.
  void ask_about_experts(const Statement& chosen) {
    if (chosen.key->name != "lora_target_modules") return;
    const auto names = [&](const char* target) {
      return std::find(chosen.value.begin(), chosen.value.end(), target) != chosen.value.end();
    };
    if (!names("all-linear") || names("all-experts") || !experts_of_model().possible) return;
    // These two give PEFT the names of linear layers; experts of transformers 5 are tensors without any.
    const bool by_names = tool_.name == "axolotl" || tool_.name == "llama-factory";
    result_.look.push_back(
        {chosen.said, chosen.where,
         by_names ? "experts and routers are not adapted here, nor there with transformers 5; with 4 they are: add "
                    "all-experts"
                  : "experts and routers are not adapted here; PEFT 0.21 does, and any with transformers 4: add "
                    "all-experts"});
  }

  /// Adds a remark: Axolotl's Muon is Microsoft's (the dion repository).
  void ask_about_muon(const Statement& chosen) {
    if (tool_.name != "axolotl" || chosen.key->name != "optim" || chosen.value != name_of(OptimizerName::kMuon)) return;
    result_.look.push_back({chosen.said, chosen.where,
                            "Axolotl's Muon has other coefficients, steps wide matrices at √(rows / columns) of the "
                            "rate, routers too, and does not decay embeddings"});
  }

  static bool mentions(const ConfigNode& node, const char* key) {
    return std::any_of(node.members.begin(), node.members.end(), [&](const ConfigMember& member) {
      return config_name(member.name) == key || mentions(member.value, key);
    });
  }

  /// Adds a remark: 4 bits are fp4 in transformers where a script does not say otherwise.
  void ask_about_four_bits(const Statement& chosen) {
    if (tool_.name != "transformers" || chosen.key->name != "base_weight_dtype" || chosen.value != nf4_format().name())
      return;
    if (mentions(source_.root, "bnb_4bit_quant_type")) return;
    result_.look.push_back(
        {chosen.said, chosen.where, "without bnb_4bit_quant_type, 4 bits are fp4 there and nf4 here"});
  }

  /// Axolotl adds special tokens that the tokenizer lacks. pad_token is none that is read here.
  void add_special_tokens_of_axolotl() {
    if (tool_.name != "axolotl" || !source_.has_token) return;
    std::string folder;
    for (const char* key : {"model_name_or_path", "tokenizer_name_or_path"}) {
      const auto found = statements_.find(key);
      if (found != statements_.end() && found->second.front().value.is_string()) folder = found->second.front().value;
    }
    std::vector<Statement>& roles = statements_["special_tokens"];
    for (Statement& one : roles) {
      Json kept = Json::object();
      for (const auto& [role, token] : one.value.items()) {
        const bool lacks = token.is_string() && !source_.has_token(folder, token.get<std::string>()).value_or(true);
        if (lacks && role == "pad_token") {
          result_.no_effect.push_back({one.said, one.where, "the tokenizer has no such token, and no row is padded"});
          continue;
        }
        if (lacks) {
          Statement added = one;
          added.key = &key_spec("add_special_tokens");
          added.value = Json::array({token});
          statements_["add_special_tokens"].push_back(std::move(added));
        }
        kept[role] = token;
      }
      one.value = std::move(kept);
    }
    std::erase_if(roles, [](const Statement& one) { return one.value.empty(); });
    if (roles.empty()) statements_.erase("special_tokens");
  }

  void choose() {
    add_special_tokens_of_axolotl();
    for (const KeySpec& key : schema()) {
      const auto found = statements_.find(key.name);
      if (found == statements_.end()) continue;
      const Statement chosen = chosen_statement(agreed(key, found->second));
      ask_about_experts(chosen);
      ask_about_muon(chosen);
      ask_about_four_bits(chosen);
      const bool same = chosen.said.starts_with(key.name + ": ");
      result_.stated.push_back({&key, chosen.value, same ? "" : chosen.said});
    }
  }

  bool states(const std::string& name) const {
    return std::any_of(result_.stated.begin(), result_.stated.end(),
                       [&](const TranslatedKey& stated) { return stated.key->name == name; });
  }

  bool states_value(const std::string& name, const char* value) const {
    return std::any_of(result_.stated.begin(), result_.stated.end(),
                       [&](const TranslatedKey& stated) { return stated.key->name == name && stated.value == value; });
  }

  /// Whether `name` is one of the tool's defaults.
  bool adds(const std::string& name) const {
    return std::any_of(result_.defaults.begin(), result_.defaults.end(),
                       [&](const TranslatedKey& added) { return added.key->name == name; });
  }

  /// Whether the key is stated, or a key with the same meaning in other units.
  bool is_decided(const std::string& name) const {
    if (name == "num_train_epochs" && states("max_steps")) return true;
    if (states(name)) return true;
    return std::any_of(key_families().begin(), key_families().end(), [&](const std::vector<std::string>& family) {
      return std::find(family.begin(), family.end(), name) != family.end() &&
             std::any_of(family.begin(), family.end(), [&](const std::string& other) { return states(other); });
    });
  }

  bool uses_lora(const ConfigNode& defaults) const {
    for (const TranslatedKey& stated : result_.stated) {
      if (stated.key->name == "finetuning_type") return stated.value == name_of(FinetuningType::kLora);
    }
    const bool about_lora = std::any_of(result_.stated.begin(), result_.stated.end(), [](const TranslatedKey& stated) {
      const bool says = !stated.value.is_null();
      return says && (stated.key->name.starts_with("lora_") || stated.key->name == "adapter_name_or_path");
    });
    const ConfigNode* method = defaults.find("finetuning_type");
    return about_lora || (method && method->text == name_of(FinetuningType::kLora));
  }

  /// A tool's defaults merged with those of its base.
  static ConfigNode with_base(const Tool& tool, ConfigNode Tool::*defaults) {
    ConfigNode all = tool.base.empty() ? ConfigNode{} : with_base(*find_tool(tool.base), defaults);
    for (const auto& [name, value] : (tool.*defaults).members) {
      all.put(name, value);
    }
    return all;
  }

  void add_defaults() {
    ConfigNode defaults = with_base(tool_, &Tool::defaults);
    if (defaults.members.empty()) return;
    std::set<std::string> of_lora;
    if (uses_lora(defaults)) {
      for (const auto& [name, value] : with_base(tool_, &Tool::lora_defaults).members) {
        defaults.put(name, value);
        of_lora.insert(name);
      }
    }
    const bool evaluates = states("val_split") || states("eval_datasets");
    const bool muon_of_v1 = tool_.name == "llama-factory-v1" && states_value("optim", "muon");
    for (auto& [name, value] : defaults.members) {
      if (is_decided(name) || (name == "val_split" && evaluates)) continue;
      if (name == "router_aux_loss_coef" && switch_of_balance_) continue;  // it is the model's
      // Axolotl adapts the parameters alone; PEFT adds its own modules where none are stated.
      if (name == "lora_target_modules" && tool_.name == "axolotl" && states("lora_target_parameters")) continue;
      if (of_lora.contains(name) && states("adapter_name_or_path")) continue;  // the adapter has its own
      if (muon_of_v1 && (name == "weight_decay" || name == "adam_beta2")) {    // its Muon has defaults of its own
        value.text = name == "weight_decay" ? "0.1" : "0.95";
      }
      if (name == "bnb_4bit_use_double_quant" && !states_value("base_weight_dtype", "nf4")) continue;
      const KeySpec& key = key_spec(name);
      const std::optional<Json> parsed = parse_value(key, value, name);
      const bool as_here = parsed && parsed->is_null() && key.default_value.is_null();
      if (parsed && !as_here) result_.defaults.push_back({&key, *parsed, fmt::format("{}'s default", tool_.title)});
    }
    if (tool_.name == "axolotl" && adds("warmup_ratio")) {
      result_.look.push_back(
          {"warmup_ratio", tool_.title,
           "the run has at most 3,333 steps: where no key says it, Axolotl warms up for 3 % of them, "
           "but at most 100"});
    }
    drop_defaults_that_hone_has();
  }

  /// Removes defaults that are also Hone's.
  void drop_defaults_that_hone_has() {
    std::string text;
    for (const TranslatedKey& stated : result_.stated) text += yaml_line(*stated.key, stated.value);
    for (const TranslatedKey& added : result_.defaults) {
      if (added.key->name == "finetuning_type") text += yaml_line(*added.key, added.value);
    }
    RunConfig run;
    try {
      run = resolve_config(parse_config_text(text, tool_.name), ConfigNode{}).run;
    } catch (const UserError&) {  // it is incomplete without a default: use Hone's independent defaults
    }
    std::erase_if(result_.defaults, [&](const TranslatedKey& added) { return added.key->load(run) == added.value; });
  }

  const Tool& tool_;
  const TranslationSource& source_;
  Translation result_;
  std::map<std::string, std::vector<Statement>> statements_;
  std::optional<Remark> switch_of_balance_;  ///< output_router_logits: true
};

}  // namespace

Translation translate(const Tool& tool, const TranslationSource& source) { return Translator(tool, source).run(); }

}  // namespace hone
