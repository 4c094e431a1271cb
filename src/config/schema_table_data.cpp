#include <array>
#include <utility>

#include "config/alias_rules.h"
#include "config/schema_builder.h"

namespace hone {
namespace {

using Data = RunConfig::Data;
constexpr auto kData = &RunConfig::data;

void add_sets(GroupBuilder group) {
  group
      .key("datasets",
           "What to train on: a path, a list of paths, or a list of entries. `path#N` takes the first N samples.")
      .field(kData, &Data::datasets)
      .alias({"dataset", "dataset_path", "dataset_name", "train_file", "data_path", "train_dataset"})
      .alias("repository.path", entry_of_type("code"));
  group.key("eval_datasets", "What to evaluate on, written as datasets.")
      .field(kData, &Data::eval_datasets)
      .alias({"test_datasets", "eval_dataset", "val_dataset", "validation_datasets", "validation_file", "val_file"});
  group.key("val_split", "Share (below 1) or number of training samples held back for evaluation.")
      .field(kData, &Data::val_split)
      .at_least(0)
      .alias({"val_set_size", "val_size", "validation_split", "split_dataset_ratio", "test_split_size"})
      .alias({"validation_split_ratio"})
      .alias("train_split", rest_of_one());
  group.key("shuffle", "Draw the samples in an order given by data_seed and the epoch.")
      .field(kData, &Data::shuffle)
      .alias({"dataset_shuffle", "shuffle_dataset"});
  group.key("interleave_probs", "Shares of the data sets in the mixture, one for each: the weight of its entry.")
      .field(kData, &Data::interleave_probs);
  group.key("column_mapping", "Names in the data by ours, for the data sets that state none.")
      .field(kData, &Data::column_mapping)
      .alias({"columns"})
      .alias("dataset_text_field", member_of("text"));
  group.key("ignore_columns", "Columns of the data that are left alone, for the data sets that state none.")
      .field(kData, &Data::ignore_columns);
}

void add_sample_length(GroupBuilder group) {
  group.key("max_length", "Longest sample in tokens, and the length of a pack.")
      .field(kData, &Data::max_length)
      .at_least(2)
      .at_most(1 << 24)
      .unset({"auto"})
      .default_note("min(the model's, 4096)")
      .alias({"sequence_len", "cutoff_len", "max_seq_length", "max_seq_len", "seq_len"});
  group.key("overlength", "What becomes of a longer sample; counts and the share of tokens are printed.")
      .field(kData, &Data::overlength)
      .spelled({{"delete", "drop"},
                {"truncate", "truncate_right"},
                {"left", "truncate_left"},
                {"right", "truncate_right"},
                {"raise", "error"},
                {"keep_start", "truncate_right"},
                {"keep_end", "truncate_left"}})
      .alias({"excess_length_strategy", "truncation_strategy", "truncation_mode", "tokenizer.truncation_side"});
  group.key("packing", "Put several samples into one sequence; they never see each other.")
      .field(kData, &Data::packing)
      .alias({"sample_packing", "neat_packing", "use_packing"})
      .alias("padding_free", mapped({{"huggingface", "true"}}));
  group.later("packing_strategy", KeyType::kString, "Packing other than best fit, decreasing.").neutral("bfd");
}

void add_template(GroupBuilder group) {
  group.key("train_on", "Which tokens are learnt: every assistant turn, all, the last turn, or the completion.")
      .field(kData, &Data::train_on)
      .alias("train_on_inputs", either("all", "assistant"))
      .alias("train_on_prompt", either("all", "assistant"))
      .alias("assistant_only_loss", either("assistant", "all", Emphasis::kWeak))
      .alias("completion_only_loss", either("completion", "all", Emphasis::kWeak))
      .alias("mask_history", when_true("last"))
      .alias("roles_to_train", roles_to_train())
      .alias("loss_scale", mapped({{"default", "assistant"}, {"last_round", "last"}}));
  group
      .key("history_rewrites",
           "Answers that the template shows otherwise once more follows: learnt in samples of their own, not learnt, "
           "or refused.")
      .field(kData, &Data::history_rewrites);
  group
      .key("chat_template",
           "A chat template that is built in (chatml, llama3, mistral, qwen, …), or the template itself, in Jinja.")
      .field(kData, &Data::chat_template)
      .unset({"default", "tokenizer_default", "auto", "jinja"})
      .default_note("the model's own")
      .redirect([](const ConfigNode& node) {
        const bool file = node.text.ends_with(".jinja") || node.text.ends_with(".j2");
        return file && node.text.find('{') == std::string::npos ? "chat_template_file" : "";
      })
      .alias({"chat_template_jinja", "template"});
  group.key("chat_template_file", "A file with the chat template.")
      .field(kData, &Data::chat_template_file)
      .type(KeyType::kPath)
      .alias({"chat_template_path"});
  group.key("special_tokens", "Tokens in other roles than the tokenizer's files say: bos_token, eos_token, …")
      .field(kData, &Data::special_tokens);
  group.key("eot_tokens", "Further tokens that end a turn: learnt after an answer, and generation stops there.")
      .field(kData, &Data::eot_tokens);
  group.key("add_bos_token", "Whether text that is not a chat begins with bos.")
      .field(kData, &Data::add_bos_token)
      .default_note("as the tokenizer has it")
      .alias({"add_bos"});
  group.key("add_eos_token", "Whether text that is not a chat ends with eos.")
      .field(kData, &Data::add_eos_token)
      .alias({"add_eos"});
  group.key("chat_template_kwargs", "Variables for the chat template, such as enable_thinking.")
      .field(kData, &Data::chat_template_kwargs)
      .alias("enable_thinking", switch_of(member_of("enable_thinking")));
  group
      .key("learn_empty_thinking",
           "Learn the empty think block that the template puts in front of an answer without thoughts.")
      .field(kData, &Data::learn_empty_thinking);
  group.key("split_special_tokens", "Encode special tokens in the text of messages as text.")
      .field(kData, &Data::split_special_tokens);
}

/// What an entry of type code says about its samples.
void add_code_keys(GroupBuilder& group) {
  group.key("languages", "Of type code: the languages to read.")
      .type(KeyType::kStringList)
      .choices({"rust", "cpp", "python"})
      .spelled({{"c++", "cpp"}, {"c", "cpp"}, {"cuda", "cpp"}})
      .default_note("all");
  group.key("kinds", "Of type code: the kinds of samples.")
      .type(KeyType::kStringList)
      .choices({"full_file", "chunk", "function_signature", "struct_definition", "trait_definition", "impl_block",
                "module_structure"})
      .default_note("all");
  group.key("max_tokens", "Of type code: the longest sample; longer files become chunks.")
      .type(KeyType::kInteger)
      .at_least(2)
      .neutral(4096);
  group.key("overlap", "Of type code: tokens a chunk shares with the one before it.")
      .type(KeyType::kInteger)
      .at_least(0)
      .neutral(256);
  group.key("min_tokens", "Of type code: shorter samples are left out.")
      .type(KeyType::kInteger)
      .at_least(0)
      .neutral(50);
  group.key("include_tests", "Of type code: whether tests are read.").type(KeyType::kBool).neutral(true);
  group
      .key("exclude_patterns",
           "Of type code: paths to leave out, as in .gitignore; !NAME takes one of the defaults back.")
      .type(KeyType::kStringList)
      .default_note("build folders, installed packages and the like");
  group.key("max_file_size", "Of type code: larger files are skipped.").type(KeyType::kSize).default_note("1 MiB");
}

void add_preparation(GroupBuilder group) {
  group
      .key("code_samples",
           "Keys of data sets of type code, for those that do not state them: max_tokens, overlap, min_tokens, …")
      .field(kData, &Data::code_samples)
      .alias("dataset.max_tokens", entry_member("max_tokens"))
      .alias("dataset.overlap", entry_member("overlap"))
      .alias("dataset.min_tokens", entry_member("min_tokens"))
      .alias("dataset.include_tests", entry_member("include_tests"))
      .alias("repository.exclude_patterns", entry_member("exclude_patterns"));
  group.key("tokenized_cache", "A folder in which tokenized data are kept, and found again as long as they fit.")
      .field(kData, &Data::tokenized_cache)
      .type(KeyType::kPath)
      .alias({"dataset_prepared_path", "tokenized_path", "cached_dataset"});
  group
      .key(
          "data_checks",
          "What to do if nothing is learnt of over 1 % of a data set's rows, or of (nearly) none or all of its tokens.")
      .field(kData, &Data::data_checks);
}

}  // namespace

void add_data_keys(std::vector<KeySpec>& table) {
  add_sets({table, "Data sets"});
  add_preparation({table, "Data sets"});
  add_sample_length({table, "Length and packing"});
  add_template({table, "Templates and loss mask"});
}

void add_dataset_keys(std::vector<KeySpec>& table) {
  GroupBuilder group(table, "An entry of datasets");
  group.key("path", "A file, a folder of files, or a data set of the Hugging Face hub (ORG/NAME).")
      .type(KeyType::kPath)
      .alias({"data_path", "file", "dataset"});
  group.key("type", "Format of the samples; auto goes by the columns and prints what it found.")
      .choices({"auto", "messages", "sharegpt", "alpaca", "prompt_response", "prompt_completion", "text", "tokenized",
                "code"})
      .spelled({{"chat_template", "messages"},
                {"conversation", "messages"},
                {"chatml", "messages"},
                {"openai", "messages"},
                {"instruction", "alpaca"},
                {"completion", "text"}})
      .neutral("auto")
      .alias({"formatting", "format_type"});
  group.key("samples", "Use only the first so many samples.")
      .type(KeyType::kInteger)
      .at_least(1)
      .alias({"num_samples", "max_samples"});
  group.key("name", "Its name in logs and metrics; of a data set of the hub, which of its configurations.")
      .default_note("from the path")
      .alias({"subset"});
  group.key("revision", "Of a data set of the hub: the branch, tag or commit.")
      .type(KeyType::kString)
      .default_note("none: main");
  group.key("weight", "Its share in the mixture, in relation to the weights of the others (1 where none is stated).")
      .type(KeyType::kNumber)
      .above(0)
      .default_note("none: every sample once an epoch")
      .alias({"fraction", "interleave_probs"});
  group
      .key(
          "split",
          "The files or the folder of a data set's folder to read: train, test, …; and which of the rows: train[:20%], "
          "train[100:200], train[-50:].")
      .type(KeyType::kString)
      .alias({"train_on_split"});
  KeyBuilder mapping = group.key("column_mapping",
                                 "Names in the data by ours: columns (system, prompt, response, messages, …), keys of "
                                 "messages (role, content, …), and roles.");
  mapping.type(KeyType::kMapping)
      .alias({"columns", "message_property_mappings", "tags"})
      .alias("roles", member_of("roles"));
  // How other tools name one column each.
  static constexpr std::array<std::pair<const char*, const char*>, 19> kFields = {
      {{"field_messages", "messages"},
       {"messages_field", "messages"},
       {"field_instruction", "instruction"},
       {"instruction_field", "instruction"},
       {"field_input", "input"},
       {"input_field", "input"},
       {"field_output", "output"},
       {"output_field", "output"},
       {"field_system", "system"},
       {"system_field", "system"},
       {"system_prompt_field", "system"},
       {"field_tools", "tools"},
       {"tools_field", "tools"},
       {"text_field", "text"},
       {"text_column", "text"},
       {"field", "text"},
       {"message_field_role", "role"},
       {"message_field_content", "content"},
       {"message_field_training", "train"}}};
  for (const auto& [name, ours] : kFields) mapping.alias(name, member_of(ours));
  group.key("ignore_columns", "Columns of the data that are left alone: rejected, label, images, …")
      .type(KeyType::kStringList)
      .default_note("none");
  group.key("delimiter", "Between the fields of CSV: a character, or tab.")
      .type(KeyType::kString)
      .default_note("recognised in the header")
      .alias({"sep"});
  group
      .key("prompt_template",
           "Of type alpaca: a prompt written as text instead of the chat template. alpaca (Alpaca's own), alpaca_chat, "
           "alpaca_chatml, alpaca_phi, plain, or {format, no_input_format, system_format, system_prompt} with "
           "{instruction}, {input} and {system} in their texts.")
      .type(KeyType::kNamed)
      .default_note("none: the chat template");
  group.key("drop_system_message", "Of chats: leave out a system message that is the first, in the data or a column.")
      .type(KeyType::kBool)
      .default_note("false");
  add_code_keys(group);
  group.no_effect("ds_type", "The kind of file is read off its name.");
}

}  // namespace hone
