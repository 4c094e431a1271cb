#include "app/convert_config/tool_habits.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "config/config_value.h"
#include "core/base/printable.h"

namespace hone {
namespace {

using Kind = ConfigNode::Kind;

std::string text_of(const ConfigNode& root, std::string_view name) {
  const ConfigNode* value = find_stated(root, name);
  return value && value->kind == Kind::kScalar ? value->text : "";
}

double number_of(const ConfigNode& root, std::string_view name) {
  double number = 0;
  return parse_number(text_of(root, name), number) ? number : 0;
}

bool is_from(const Tool& tool, std::string_view name) {
  return tool.name == name || (!tool.base.empty() && is_from(*find_tool(tool.base), name));
}

std::string said_here(const TranslatedKey& key) {
  return key.note.empty() ? fmt::format("{}: {}", key.key->name, key.value.dump()) : key.note;
}

/// A translation of a tool's file, and what the file says itself.
class Habits {
 public:
  Habits(const Tool& tool, const TranslationSource& source, const Experts& experts, Translation& result)
      : tool_(tool), root_(source.root), devices_(source.devices), experts_(experts), result_(result) {}

  void state() {
    if (tool_.name == "axolotl") {
      method_of_axolotl();
      packed_weights_of_axolotl();
      batch_of_axolotl();
      shards_of_axolotl();
      long_texts_of_axolotl();
      best_of_axolotl();
      order_of_axolotl();
      tracker_of_axolotl();
    }
    if (!is_from(tool_, "llama-factory")) return;
    new_rows_of_llama_factory();
    ask_about_megatron();
    if (is_on(root_, "packing") && !is_on(root_, "neat_packing") && text_of(root_, "stage") != "pt") {
      look("packing", "samples of a pack see each other there, and not here (as with neat_packing)");
    }
  }

  void finish() {
    sum_balance_of_micro_batches();
    leave_out_warmup_of_a_constant_rate();
    leave_out_evaluation_of_nothing();
    if (tool_.name == "axolotl") ask_about_rounded_steps();
    if (is_from(tool_, "llama-factory")) ask_about_long_chats();
    spread_over_devices();
  }

 private:
  static const TranslatedKey* in(const std::vector<TranslatedKey>& list, std::string_view name) {
    const auto found = std::find_if(list.begin(), list.end(), [&](const auto& key) { return key.key->name == name; });
    return found == list.end() ? nullptr : &*found;
  }
  bool states(std::string_view name) const { return in(result_.stated, name) != nullptr; }
  /// What is stated, or the tool's default; null if it is Hone's.
  const TranslatedKey* chosen(std::string_view name) const {
    const TranslatedKey* stated = in(result_.stated, name);
    return stated ? stated : in(result_.defaults, name);
  }
  bool evaluates() const { return states("val_split") || states("eval_datasets"); }

  void add(const char* name, Json value, const std::string& note) {
    result_.stated.push_back({&key_spec(name), std::move(value), note});
  }
  void look(const std::string& said, const std::string& why) { result_.look.push_back({said, tool_.title, why}); }

  /// Takes statements out, and says why they have no effect.
  template <class Which>
  void leave_out(const Which& which, const std::string& why) {
    std::erase_if(result_.stated, [&](const TranslatedKey& key) {
      if (!which(key)) return false;
      result_.no_effect.push_back({said_here(key), tool_.title, why});
      return true;
    });
  }

  /// Axolotl trains all weights unless `adapter` says otherwise, whatever stands in keys of LoRA.
  void method_of_axolotl() {
    if (find_stated(root_, "unfrozen_parameters") && !text_of(root_, "adapter").empty()) {
      look("unfrozen_parameters", "beside an adapter its names match nothing there, and the adapter is frozen, too");
    }
    if (!text_of(root_, "adapter").empty()) return;
    const auto of_lora = [](const TranslatedKey& key) {
      return key.key->name.starts_with("lora_") || key.key->name == "adapter_name_or_path";
    };
    if (std::none_of(result_.stated.begin(), result_.stated.end(), of_lora)) return;
    leave_out(of_lora, "no adapter is stated, and Axolotl trains all weights then");
    if (!states("finetuning_type")) add("finetuning_type", "full", "adapter is not stated");
  }

  /// Axolotl packs the base for adapter: qlora in 4 bits and lora in 8, and leaves routed experts as they are unless
  /// quantize_moe_experts is on: transformers 5 holds them in tensors that bitsandbytes does not pack.
  void packed_weights_of_axolotl() {
    const std::string adapter = text_of(root_, "adapter");
    const bool packs =
        adapter == "qlora" ? !is_on(root_, "load_in_8bit") : adapter == "lora" && is_on(root_, "load_in_8bit");
    const auto by_load_in = [](const TranslatedKey& key) {
      return key.key->name == "base_weight_dtype" &&
             (key.note.starts_with("load_in_") || key.note.starts_with("adapter"));
    };
    if (!packs) {
      return leave_out(by_load_in, "Axolotl packs the base in 4 bits with adapter: qlora, in 8 with lora, else not");
    }
    const bool packed = std::any_of(result_.stated.begin(), result_.stated.end(), by_load_in);
    if (!packed || is_on(root_, "quantize_moe_experts") || !experts_.possible || states("base_weight_keep")) return;
    const char* why = "Axolotl packs no experts without quantize_moe_experts (those of transformers 4 it did): {}";
    if (!experts_.known) {
      return look(
          "load_in_4bit, load_in_8bit",
          fmt::format(fmt::runtime(why), "if the model has some, state base_weight_keep: ['re:\\.experts\\.']"));
    }
    add("base_weight_keep", Json::array({"re:\\.experts\\."}), "quantize_moe_experts is not stated");
    look("base_weight_keep", fmt::format(fmt::runtime(why), "take it out to pack them, too"));
  }

  /// Ranks among which the devices share one sample, and do not each have their own.
  int64_t devices_of_a_sample() const {
    double ranks = 1;
    for (const char* name : {"context_parallel_size", "sequence_parallel_degree", "tensor_parallel_size",
                             "tensor_model_parallel_size", "pipeline_model_parallel_size", "cp_size"}) {
      ranks *= std::max(1.0, number_of(root_, name));
    }
    return static_cast<int64_t>(ranks);
  }
  /// Devices that have samples of their own; says where they do not divide.
  int64_t devices_with_samples() {
    const int64_t together = devices_of_a_sample();
    if (devices_ % together == 0) return devices_ / together;
    look(fmt::format("{} devices", devices_),
         fmt::format("{} of them share a sample, which does not divide", together));
    return devices_;
  }

  /// Axolotl's batch_size is that of one device, and only says what gradient_accumulation_steps is.
  void batch_of_axolotl() {
    const bool steps = states("gradient_accumulation_steps");
    std::erase_if(result_.stated, [&](TranslatedKey& key) {
      if (key.key->name != "global_batch_size") return false;
      if (steps) result_.no_effect.push_back({said_here(key), tool_.title, "gradient_accumulation_steps says it"});
      if (!steps && key.value.is_number_integer()) key.value = key.value.get<int64_t>() * devices_with_samples();
      return steps;
    });
  }

  /// Axolotl's dp_shard_size counts groups of expert_parallel_size ranks; here it counts ranks, in which they fit.
  void shards_of_axolotl() {
    if (!states("expert_parallel_size")) return;
    const int64_t spread = number("expert_parallel_size");
    for (TranslatedKey& key : result_.stated) {
      double groups = 0;
      const bool counted = key.key->name == "dp_shard_size" && key.value.is_string() &&
                           parse_number(key.value.get<std::string>(), groups);
      if (counted) key.value = std::to_string(static_cast<int64_t>(groups) * spread);
    }
  }

  /// Axolotl cuts texts to continue into pieces, and those of pretraining_dataset into windows that overlap.
  void long_texts_of_axolotl() {
    if (states("overlength")) return;
    if (find_stated(root_, "pretraining_dataset")) {
      const bool packs = is_on(root_, "sample_packing");
      add("overlength", packs ? "split" : "truncate_right", "pretraining_dataset");
      if (packs)
        look("pretraining_dataset", "pieces overlap there by up to 256 tokens, and each ends in the eos token");
      return;
    }
    const ConfigNode* sets = find_stated(root_, "datasets");
    if (!sets || sets->kind != Kind::kSequence) return;
    const auto count = std::count_if(sets->items.begin(), sets->items.end(), [](const ConfigNode& item) {
      return item.kind == Kind::kMapping && text_of(item, "type").starts_with("completion");
    });
    if (count == 0) return;
    if (count == static_cast<int64_t>(sets->items.size())) return add("overlength", "split", "type: completion");
    look("datasets: type: completion",
         "no text is longer: Axolotl cuts those into pieces, and drops other long samples");
  }

  /// early_stopping_patience also makes the best checkpoint the result, where saves fall on evaluations.
  void best_of_axolotl() {
    if (!states("early_stopping_patience") || states("load_best_model_at_end") || !evaluates()) return;
    const auto divides = [&](const char* often, const char* seldom) {
      const double a = number_of(root_, often), b = number_of(root_, seldom);
      return a > 0 && b > 0 && std::fmod(b, a) == 0;
    };
    if (divides("eval_steps", "save_steps") || divides("saves_per_epoch", "evals_per_epoch")) {
      add("load_best_model_at_end", true, "early_stopping_patience");
    }
  }

  /// The trainer draws samples at random whatever their order is, except those of texts that are read as they come.
  void order_of_axolotl() {
    const bool read_in_order = find_stated(root_, "pretraining_dataset") || is_on(root_, "streaming");
    const std::string shuffled = text_of(root_, "shuffle_merged_datasets");
    if (read_in_order && shuffled == "false" && !states("shuffle"))
      add("shuffle", false, "shuffle_merged_datasets: false");
  }

  /// A project of Weights & Biases is reported to, whatever report_to says.
  void tracker_of_axolotl() {
    if (text_of(root_, "wandb_project").empty() || text_of(root_, "wandb_mode") == "disabled") return;
    if (!states("report_to")) add("report_to", Json::array({"jsonl", "tensorboard", "wandb"}), "wandb_project");
  }

  /// Megatron weights each micro-batch alike.
  void ask_about_megatron() {
    if (!trains_by_megatron(root_)) return;
    if (!is_on(root_, "calculate_per_token_loss")) {
      look("calculate_per_token_loss", "Megatron's loss is the mean of the micro-batches' means, here of all tokens");
    }
    const TranslatedKey* method = chosen("finetuning_type");
    if (is_on(root_, "use_megatron_bridge") && method && method->value == name_of(FinetuningType::kLora)) {
      look("use_megatron_bridge", "q, k and v share the matrix A of an adapter there, and so do gate and up");
    }
  }

  /// Hugging Face's trainer adds the balancing loss of every micro-batch.
  void sum_balance_of_micro_batches() {
    if (!is_from(tool_, "transformers") || trains_by_megatron(root_) || states("aux_loss_reduction")) return;
    if (!experts_.possible || number("gradient_accumulation_steps") == 1) return;
    const TranslatedKey* coefficient = chosen("router_aux_loss_coef");
    if (!coefficient || !coefficient->value.is_number() || coefficient->value.get<double>() == 0) return;
    result_.defaults.push_back({&key_spec("aux_loss_reduction"), "hf_sum", fmt::format("{}'s sum", tool_.title)});
  }

  /// Removes a warm-up from a constant schedule, as Hugging Face ignores it; Hone has none there either.
  void leave_out_warmup_of_a_constant_rate() {
    const TranslatedKey* schedule = in(result_.stated, "lr_scheduler_type");
    if (!schedule || schedule->value != name_of(LrScheduler::kConstant)) return;
    const auto is_warmup = [](const TranslatedKey& key) {
      return key.key->name == "warmup_steps" || key.key->name == "warmup_ratio";
    };
    std::erase_if(result_.defaults, is_warmup);
    leave_out(is_warmup, "a constant schedule has no warm-up");
  }

  /// Removes evaluation keys if there is no evaluation data: other tools find a split by its name, Hone does not.
  void leave_out_evaluation_of_nothing() {
    if (evaluates() || in(result_.defaults, "val_split")) return;
    std::erase_if(result_.stated, [&](const TranslatedKey& key) {
      const bool strategy = key.key->name == "eval_strategy" && key.value != name_of(Cadence::kNo);
      const bool on =
          (key.key->name == "eval_on_start" || key.key->name == "load_best_model_at_end") && key.value == true;
      if (!strategy && !on) return false;
      look(said_here(key), "there is something to evaluate on: state eval_datasets or val_split");
      return true;
    });
  }

  /// Axolotl steps weights of bfloat16 themselves where nothing shards them.
  void ask_about_rounded_steps() {
    const TranslatedKey* method = chosen("finetuning_type");
    const TranslatedKey* dtype = chosen("dtype");
    const bool full = !method || method->value == name_of(FinetuningType::kFull);
    const bool wide = (dtype && dtype->value == name_of(DType::kF32)) || is_on(root_, "float32");
    if (!full || wide || states("master_dtype") || find_stated(root_, "fsdp") || find_stated(root_, "fsdp_config") ||
        find_stated(root_, "deepspeed")) {
      return;
    }
    look("bf16",
         "Axolotl steps the bfloat16 weights themselves, and small steps round away: here they have float32 "
         "copies (master_dtype: bfloat16 is nearer)");
  }

  /// LLaMA-Factory trains the embedding and the head whole beside adapters, also where no row is added.
  void new_rows_of_llama_factory() {
    const bool resizes = is_on(root_, "resize_vocab");
    const TranslatedKey* method = chosen("finetuning_type");
    if (resizes && method && method->value == name_of(FinetuningType::kLora) && !states("lora_modules_to_save")) {
      add("lora_modules_to_save", Json::array({"embed_tokens", "lm_head"}), "resize_vocab: true");
    }
    if (resizes || states("add_tokens") || states("add_special_tokens")) {
      look(resizes ? "resize_vocab" : "add_tokens",
           "rows of new tokens begin with noise around the mean there, and here as the mean; rows that the model has "
           "keep their values here");
    }
  }

  /// LLaMA-Factory cuts the prompt and the answer of a long sample apart.
  void ask_about_long_chats() {
    const TranslatedKey* overlength = in(result_.defaults, "overlength");
    if (!overlength || overlength->value != "truncate_right") return;
    look("cutoff_len",
         "no sample is longer: of those, prompts and answers each lose their ends there, and here the whole "
         "sample its end");
  }

  /// The stated or added value of a key, or Hone's default.
  int64_t number(const std::string& name) const {
    const TranslatedKey* found = chosen(name);
    return found ? found->value.get<int64_t>() : key_spec(name).default_value->get<int64_t>();
  }

  /// Converts a batch per device on several devices to the global batch, which is valid for any number of ranks.
  void spread_over_devices() {
    if (devices_ == 1 || chosen("global_batch_size")) return;
    const int64_t each = number("per_device_train_batch_size"), steps = number("gradient_accumulation_steps");
    const int64_t devices = devices_with_samples();
    for (auto* list : {&result_.stated, &result_.defaults}) {
      std::erase_if(*list, [](const TranslatedKey& found) { return found.key->name == "gradient_accumulation_steps"; });
    }
    add("global_batch_size", each * steps * devices, fmt::format("{} × {} × {} devices", each, steps, devices));
  }

  const Tool& tool_;
  const ConfigNode& root_;
  int64_t devices_;
  Experts experts_;
  Translation& result_;
};

}  // namespace

bool trains_by_megatron(const ConfigNode& root) {
  constexpr std::array kKeys = {"use_mca",
                                "use_megatron_bridge",
                                "moe_grouped_gemm",
                                "recompute_granularity",
                                "pipeline_model_parallel_size",
                                "tensor_model_parallel_size",
                                "expert_model_parallel_size"};
  return std::any_of(kKeys.begin(), kKeys.end(), [&](const char* name) { return find_stated(root, name) != nullptr; });
}

bool is_harmless_plugin(const std::string& plugin) {
  const std::string name = in_lower_case(plugin);
  constexpr std::array kHarmless = {"cut_cross_entropy", "liger", "kernels", "expert_parallel", "swanlab", "lm_eval"};
  return std::any_of(kHarmless.begin(), kHarmless.end(),
                     [&](const char* part) { return name.find(part) != std::string::npos; });
}

void state_habits(const Tool& tool, const TranslationSource& source, const Experts& experts, Translation& result) {
  Habits(tool, source, experts, result).state();
}

void finish_habits(const Tool& tool, const TranslationSource& source, const Experts& experts, Translation& result) {
  Habits(tool, source, experts, result).finish();
}

}  // namespace hone
