// InferenceModel: a model with tokenizer and chat template for the verbs that answer.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/key_options.h"
#include "config/run_config.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json_value.h"
#include "dist/transport/mesh.h"
#include "infer/chat_prompt.h"
#include "infer/generator.h"
#include "session/loaded_model.h"
#include "session/pass_companions.h"
#include "train/plan/memory_fit.h"
#include "train/plan/trainer_ranks.h"
#include "train/save/saved_chat.h"

namespace hone {

/// Sampling options of the command line. The model's generation_config.json gives the others.
struct SamplingOverrides {
  std::optional<int64_t> max_new_tokens, top_k;
  std::optional<double> temperature, top_p, repetition_penalty;
  std::optional<bool> do_sample;  ///< unset: true if temperature, top_k or top_p is given
  std::optional<uint64_t> seed;

  SamplingOptions apply(SamplingOptions options) const;
};

struct InferenceOptions {
  std::string model;    ///< folder, or a name of the Hugging Face hub; an adapter's folder contains its base's name
  std::string adapter;  ///< folder of an adapter; "" = none
  /// Folders of adapters beside it, and whether the base answers, too: InferenceModel::form() chooses. For servers.
  std::vector<std::string> further_adapters = {};
  bool base_beside = false;
  std::string chat_template;                 ///< a Jinja file or a built-in template's name; "" = the model's
  std::string chat_template_kwargs;          ///< JSON object of variables for the template; "" = none
  std::optional<bool> enable_thinking;       ///< the template's variable of that name
  std::optional<bool> split_special_tokens;  ///< as the configuration's key; unset: as the training run had it
  SamplingOverrides sampling;
  std::vector<std::string> keys;  ///< KEY=VALUE: where weights are, in which format, and how ranks share them
  int threads = 0;                ///< 0: all cores
};

/// The keys' values that are other than the schema's.
UsualValues usual_in_inference();

/// The number of positions that a model supports.
int64_t context_length(const RopeParameters& rope);

/// Whether the folder has an adapter but no model.
bool is_adapter_folder(const std::filesystem::path& folder);
/// The base model stated in an adapter's folder. Throws UserError if there is none.
std::string base_of_adapter(const std::filesystem::path& folder);

/// Reads a chat template. Throws UserError if the file cannot be read.
ChatTemplateSource read_chat_template(const std::string& path);

/// The paths that a verb with these options reads, with descriptions (app/output.h).
std::vector<std::pair<std::filesystem::path, const char*>> inputs_of(const InferenceOptions& options);

/// A form in which a model answers, that with one of its adapters or the base, and how it is asked.
struct InferenceForm {
  std::string adapter;                         ///< its folder; "": the base
  ChatSettings trained = {};                   ///< what the run that trained it wrote
  std::shared_ptr<const Tokenizer> tokenizer;  ///< forms with equal tokens share it
  std::unique_ptr<const ChatPrompt> chat;
  /// Variables for the chat template: those of the command line, then those of the run that trained it.
  JsonObject variables = {};

  const std::vector<int32_t>& stop_ids() const { return tokenizer->special_tokens().stop; }
  bool is_stop(int32_t id) const { return std::find(stop_ids().begin(), stop_ids().end(), id) != stop_ids().end(); }
};

class InferenceModel {
 public:
  /// Reads everything but the weights. Throws UserError for a missing folder or tokenizer, an invalid template, or
  /// options out of range. `ranks` from a launcher generate together, each on a device of its own.
  explicit InferenceModel(const InferenceOptions& options, TrainerRanks ranks = {});

  /// The adapter and the further ones, or the model; then the base, if it is beside them and they leave its weights.
  const std::vector<InferenceForm>& forms() const { return forms_; }
  /// Which of them passes from now on are; the first after load().
  void use_form(size_t form);

  // The first form's.
  const Tokenizer& tokenizer() const { return *forms_[0].tokenizer; }
  const ChatPrompt& chat() const { return *forms_[0].chat; }
  const Json& template_variables() const { return forms_[0].variables; }
  const SamplingOptions& sampling() const { return sampling_; }
  /// Lines for the user: a GPU that --device auto passes over, settings of generation_config.json that are not applied,
  /// chat settings of the training run.
  const std::vector<std::string>& notes() const { return notes_; }
  /// For chats: a warning if decoding is greedy although the prompt enables thinking.
  std::optional<std::string> warning_of_thinking() const;
  const std::vector<int32_t>& stop_ids() const { return forms_[0].stop_ids(); }
  bool is_stop(int32_t id) const { return forms_[0].is_stop(id); }
  /// The name of the base model's folder.
  std::string base_name() const { return directory_.filename().string(); }
  /// The model's context_length().
  int64_t context() { return context_length(model_.decoder().config().rope); }

  /// What the answers depend on beside the prompts, each as a hash or as its text: the model's tensors, the adapter's,
  /// the formats of weights, the kind of device, and sampling. UserError if a file cannot be read.
  Json identity();

  /// Connects the ranks. `prompts` are compared: UserError on all if a rank has others.
  void connect(std::span<const std::vector<int32_t>> prompts);
  /// The other ranks, if there are any, once they are connected.
  Control* control() const { return communicator_ ? &communicator_->control() : nullptr; }

  /// Reads the weights and makes a generator, whose max_prefill_tokens this chooses. `tell` gets what experts_device
  /// auto is, and why. UserError if they do not fit in memory, with the options that help. Collective, if there are
  /// other ranks.
  Generator& load(GeneratorOptions options, const std::function<void(const std::string&)>& tell);

 private:
  /// How the form with this adapter is asked; "": the base.
  InferenceForm form_of(const std::string& adapter);
  std::string sampling_text() const;
  /// Memory of the weights, shared as a run of these keys shares them, and of a generator's cache.
  MemoryPlan plan(const RunConfig& run, const GeneratorOptions& options);
  /// Replaces experts_device auto by what is fastest of what fits. One rank.
  void choose_experts_place(const GeneratorOptions& options, const std::function<void(const std::string&)>& tell);
  /// UserError for a --cache-tokens that is too small or without effect.
  void check_cache(const GeneratorOptions& options);
  void require_memory(const GeneratorOptions& options);
  /// The fastest options with which the model fits, or advice where none does. Changes the model, which is not loaded
  /// afterwards.
  std::string what_fits(const GeneratorOptions& options, const MemoryLimit& limit);

  InferenceOptions options_;
  TrainerRanks ranks_;
  ResolvedConfig config_;  // what the keys say
  Device device_;          // chosen before a file is read
  std::filesystem::path directory_;
  RunConfig run_;  // where weights are, and how ranks share them
  ThreadPool pool_;
  Stream stream_;
  LoadedModel model_;
  std::unique_ptr<Communicator> communicator_;  // set if there are several ranks
  std::optional<RankMesh> mesh_;                // if experts are spread over them
  std::optional<PassCompanions> companions_;    // once the weights are loaded
  std::vector<InferenceForm> forms_;
  std::vector<std::string> notes_;
  SamplingOptions sampling_;
  std::unique_ptr<Generator> generator_;
};

}  // namespace hone
