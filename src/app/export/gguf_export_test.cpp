#include "app/export/gguf_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "app/convert/convert.h"
#include "app/init/init.h"
#include "app/merge/merge.h"
#include "core/base/error.h"
#include "core/cpu/thread_pool.h"
#include "core/text/json.h"
#include "core/text/untrusted_json.h"
#include "models/gguf.h"
#include "session/loaded_model.h"
#include "text/tokenizer.h"
#include "weights/checkpoint.h"
#include "weights/gguf_file.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

const fs::path kFixtures = fs::path(HONE_SOURCE_DIR) / "tests/fixtures";

class Gguf : public testing::Test {
 protected:
  Gguf()
      : folder_(fs::path(testing::TempDir()) /
                (std::string("hone_gguf_export_") + testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  ~Gguf() override { fs::remove_all(folder_); }

  static fs::path golden(const std::string& name) { return kFixtures / "goldens" / name / "model"; }
  fs::path file(const std::string& name = "model.gguf") const { return folder_ / name; }

  void export_to(const fs::path& output, const fs::path& input, const std::string& type = "", bool force = true) const {
    ExportOptions options;
    options.input = input.string();
    options.output = output.string();
    options.type = type;
    options.force = force;
    ASSERT_EQ(run_export(options), 0);
  }
  fs::path import(const fs::path& input, const std::string& dtype = "") const {
    WeightConversionOptions options;
    options.input = input.string();
    options.output = (folder_ / "back").string();
    options.dtype = dtype;
    options.force = true;
    EXPECT_EQ(run_convert(options), 0);
    return options.output;
  }
  template <class Run>
  static std::string refusal(const Run& run) {
    try {
      run();
    } catch (const UserError& error) {
      return error.message();
    }
    return "";
  }
  std::string export_refusal(const fs::path& input, const std::string& type = "") const {
    return refusal([&] { run_gguf_export({input.string(), file("no.gguf").string(), "", type, true}); });
  }
  /// The reference case's model with another config.json.
  fs::path changed(const std::string& name, const std::function<void(Json&)>& change) const {
    const fs::path folder = folder_ / ("changed_" + name);
    fs::remove_all(folder);
    fs::copy(golden(name), folder);
    Json config = read_json(folder / "config.json");
    change(config);
    std::ofstream(folder / "config.json") << config.dump();
    return folder;
  }

  fs::path folder_;
};

/// `bound` is for tensors that files have as another function of their numbers.
void expect_same_values(const Checkpoint& a, const Checkpoint& b, double bound = 0) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, tensor] : a.tensors()) {
    const Checkpoint::Tensor* other = b.find(name);
    ASSERT_TRUE(other) << name;
    EXPECT_EQ(tensor.entry->shape, other->entry->shape) << name;
    const std::vector<float> values = tensor.file->read_floats(name), others = other->file->read_floats(name);
    const bool changed = bound > 0 && (name.ends_with("norm.weight") || name.ends_with("A_log"));
    if (changed) {
      EXPECT_LE(relative_difference(others, values), bound) << name;
    } else {
      EXPECT_EQ(values, others) << name;
    }
  }
}

std::vector<float> folder_logits(const fs::path& folder, const fs::path& adapter = {}) {
  ThreadPool pool(2);
  Stream stream(Device{}, pool);
  LoadedModel model(folder, DType::kF32);
  model.set_trainable(TrainableOptions::nothing(adapter));
  Probe probe(probe_prompts(nullptr, model.decoder().config().vocab_size), stream);
  model.load(stream.device(), pool, 0, true);
  return probe.free_logits(model);
}

TEST_F(Gguf, ModelsComeBackAsTheyWere) {
  for (const char* name : {"llama",        "mistral",       "mixtral",          "qwen2",        "qwen3",
                           "qwen3_moe",    "gpt_oss",       "deepseek_v2",      "deepseek_v3",  "deepseek_v3_yarn",
                           "glm4_moe",     "glm4_moe_lite", "solar_open",       "ernie4_5_moe", "hunyuan_v1_moe",
                           "minimax_m2",   "granitemoe",    "granitemoeshared", "hy_v3",        "gemma4_text",
                           "gemma4_dense", "mistral4"}) {
    SCOPED_TRACE(name);
    // Mixtral's and Mistral's window shortens the context, up to which nothing changes.
    export_to(file(), golden(name), "f32");
    const fs::path back = import(file());
    expect_same_values(Checkpoint::open(golden(name)), Checkpoint::open(back));
    const Json before = read_json(golden(name) / "config.json"), after = read_json(back / "config.json");
    for (const char* key : {"hidden_size", "rms_norm_eps", "num_hidden_layers", "tie_word_embeddings"}) {
      EXPECT_EQ(after[key], before[key]) << key;
    }
    EXPECT_EQ(after["dtype"], "float32");
  }
}

TEST_F(Gguf, LinearLayersComeBack) {
  for (const char* name : {"granitemoehybrid", "granitemoehybrid_dense", "qwen3_next", "qwen3_5_moe"}) {
    SCOPED_TRACE(name);
    export_to(file(), golden(name), "f32");
    // Norms are one more in the file, rates of decay -exp(x).
    expect_same_values(Checkpoint::open(golden(name)), Checkpoint::open(import(file())), 1e-6);
  }
}

/// Nemotron-H's layers of one half: the case has an MLP beside experts, which files cannot say.
TEST_F(Gguf, LayersOfOneHalfComeBack) {
  for (const auto& [kinds, width] : {std::pair{std::vector{"linear_attention", "moe", "full_attention", "moe"}, 24},
                                     {std::vector{"mlp", "linear_attention", "full_attention"}, 40}}) {
    const fs::path config = changed("nemotron_h", [&](Json& json) {
      json["layers_block_type"] = kinds;
      json["num_hidden_layers"] = kinds.size();
      json["n_group"] = 4, json["topk_group"] = 2, json["layer_norm_epsilon"] = 1e-4;
    });
    NewModelOptions options;
    options.config = (config / "config.json").string();
    options.output = (folder_ / "new").string();
    options.dtype = "float32";
    options.force = true;
    ASSERT_EQ(run_new_model(options), 0);
    export_to(file(), folder_ / "new", "f32");
    const GgufFile written(file());
    const std::string name = *written.metadata().text("general.architecture");
    EXPECT_EQ(name, width == 24 ? "nemotron_h_moe" : "nemotron_h");
    const auto* widths = written.metadata().list<int64_t>(name + ".feed_forward_length");
    ASSERT_NE(widths, nullptr);
    for (size_t i = 0; i < kinds.size(); ++i) {
      const std::string_view kind = kinds[i];
      EXPECT_EQ((*widths)[i], kind == "moe" || kind == "mlp" ? width : 0) << i;
    }
    const fs::path back = import(file());
    expect_same_values(Checkpoint::open(folder_ / "new"), Checkpoint::open(back), 1e-6);
    EXPECT_LE(relative_difference(folder_logits(back), folder_logits(folder_ / "new")), 1e-6);
    EXPECT_EQ(read_json(back / "config.json")["layers_block_type"], Json(kinds));
  }
}

TEST_F(Gguf, TextModelsOfCheckpointsWithImagesComeBackAlone) {
  for (const char* name : {"kimi_k25", "qwen3_5_moe_vl", "gemma4"}) {
    SCOPED_TRACE(name);
    export_to(file(), golden(name), "f32");
    const std::vector<float> before = folder_logits(golden(name)), after = folder_logits(import(file()));
    EXPECT_LE(relative_difference(after, before), 1e-5);
  }
  const std::pair<const char*, std::function<void(Json&)>> plainer[] = {
      {"qwen3_vl_moe", [](Json& json) { json["text_config"]["mlp_only_layers"] = Json::array(); }},
      {"mistral4_vl", [](Json& json) {
         Json& text = json["text_config"];
         text["attention_bias"] = false;
         text["rope_parameters"]["mscale_all_dim"] = 1.0;
         text["rope_parameters"].erase("attention_factor");
       }}};
  for (const auto& [name, change] : plainer) {
    SCOPED_TRACE(name);
    NewModelOptions options;
    options.config = (changed(name, change) / "config.json").string();
    options.output = (folder_ / "vl").string();
    options.dtype = "float32";
    options.force = true;
    ASSERT_EQ(run_new_model(options), 0);
    export_to(file(), folder_ / "vl", "f32");
    EXPECT_EQ(folder_logits(folder_ / "vl"), folder_logits(import(file())));
  }
}

TEST_F(Gguf, EveryParameterOfTheTableIsCoveredOnce) {
  for (const char* name : {"llama",
                           "mixtral",
                           "qwen2",
                           "qwen3_moe",
                           "qwen2_moe",
                           "olmoe",
                           "gpt_oss",
                           "deepseek_v2",
                           "deepseek_v3",
                           "glm4_moe",
                           "ernie4_5_moe",
                           "dots1",
                           "hunyuan_v1_moe",
                           "minimax_m2",
                           "granitemoeshared",
                           "granitemoehybrid",
                           "granitemoehybrid_dense",
                           "qwen3_next",
                           "qwen3_5_moe",
                           "hy_v3",
                           "gemma4_text",
                           "gemma4_dense",
                           "mistral4",
                           "nemotron_h"}) {
    LoadedModel model(golden(name), DType::kF32);
    const DecoderConfig& decoder = model.decoder().config();
    std::map<const Parameter*, std::vector<int>> covered;
    for (const GgufTensor& tensor :
         gguf_tensors(gguf_architecture_of(model.config(), decoder), decoder, model.store())) {
      auto& rows = covered[tensor.parameter];
      rows.resize(static_cast<size_t>(tensor.parameter->shape().numel() / row_elements(*tensor.parameter)));
      for (int64_t row = 0; row < tensor.rows.rows(); ++row) {
        ++rows[static_cast<size_t>(tensor.rows.parameter_row(row))];
      }
    }
    EXPECT_EQ(covered.size(), model.store().all().size());
    for (const auto& [parameter, rows] : covered) EXPECT_THAT(rows, testing::Each(1)) << name << parameter->name();
  }
}

TEST_F(Gguf, QueriesAndKeysOfLlamaAreTurnedForNeighbours) {
  export_to(file(), golden("llama"), "f32");
  const GgufFile gguf(file());
  const Checkpoint checkpoint = Checkpoint::open(golden("llama"));
  const std::string name = "model.layers.1.self_attn.k_proj.weight";
  const std::vector<float> k = checkpoint.find(name)->file->read_floats(name);
  const GgufEntry& entry = *gguf.find("blk.1.attn_k.weight");
  std::vector<float> turned(static_cast<size_t>(entry.numel()));
  gguf.read_floats(entry, 0, entry.numel(), turned.data());
  constexpr size_t kHidden = 64, kHead = 16;  // in this case
  for (size_t row = 0; row < turned.size() / kHidden; ++row) {
    const size_t head = row / kHead, of = row % kHead, from = head * kHead + of / 2 + of % 2 * (kHead / 2);
    for (size_t i = 0; i < kHidden; ++i) ASSERT_EQ(turned[row * kHidden + i], k[from * kHidden + i]) << row;
  }
  EXPECT_EQ(gguf.find(kRopeFactors)->numel(), 8);
}

TEST_F(Gguf, KeysOfLatentsAreTransposed) {
  export_to(file(), golden("deepseek_v3"), "f32");
  const GgufFile gguf(file());
  const Checkpoint checkpoint = Checkpoint::open(golden("deepseek_v3"));
  const std::string name = "model.layers.1.self_attn.kv_b_proj.weight";
  const std::vector<float> both = checkpoint.find(name)->file->read_floats(name);
  constexpr int64_t kHeads = 4, kRank = 16, kKeys = 16, kValues = 24;  // in this case
  const auto tensor = [&](const char* of, const std::vector<int64_t>& shape) {
    const GgufEntry& entry = *gguf.find(of);
    EXPECT_EQ(entry.shape, shape);
    std::vector<float> values(static_cast<size_t>(entry.numel()));
    gguf.read_floats(entry, 0, entry.numel(), values.data());
    return values;
  };
  const std::vector<float> keys = tensor("blk.1.attn_k_b.weight", {kHeads, kRank, kKeys}),
                           values = tensor("blk.1.attn_v_b.weight", {kHeads, kValues, kRank});
  for (int64_t head = 0; head < kHeads; ++head) {
    const auto at = [&](int64_t row, int64_t column) {
      return both[static_cast<size_t>((head * (kKeys + kValues) + row) * kRank + column)];
    };
    for (int64_t rank = 0; rank < kRank; ++rank) {
      for (int64_t i = 0; i < kKeys; ++i) {
        ASSERT_EQ(keys[static_cast<size_t>((head * kRank + rank) * kKeys + i)], at(i, rank));
      }
      for (int64_t i = 0; i < kValues; ++i) {
        ASSERT_EQ(values[static_cast<size_t>((head * kValues + i) * kRank + rank)], at(kKeys + i, rank));
      }
    }
  }
}

TEST_F(Gguf, TypesRoundMatricesAndNothingElse) {
  const fs::path model = folder_ / "wide";
  const fs::path config = changed("qwen3_moe", [](Json& json) {
    json["hidden_size"] = 64, json["moe_intermediate_size"] = 32, json["num_hidden_layers"] = 1;
  });
  NewModelOptions options;
  options.config = (config / "config.json").string();
  options.output = model.string();
  ASSERT_EQ(run_new_model(options), 0);
  const Checkpoint exact = Checkpoint::open(model);
  // Half a unit of the last place, or of normal numbers in blocks whose largest is about 2.3 deviations: a step of 2.3
  // / 127 or 2.3 / 8, over the root of 12; with room for unlucky blocks.
  for (const auto& [type, bound] : {std::pair{"f16", 0x1p-11}, {"bf16", 0x1p-8}, {"q8_0", 0.01}, {"q4_0", 0.12}}) {
    SCOPED_TRACE(type);
    export_to(file(), model, type);
    const Checkpoint back = Checkpoint::open(import(file(), "float32"));
    for (const auto& [name, tensor] : exact.tensors()) {
      const std::vector<float> a = tensor.file->read_floats(name), b = back.find(name)->file->read_floats(name);
      const double difference = relative_difference(b, a);
      const bool stays = tensor.entry->shape.size() < 2 || name.ends_with("mlp.gate.weight");
      EXPECT_LE(difference, stays ? 0 : bound) << name;
    }
  }
  export_to(file(), model);  // as the files: bfloat16 or float32
  const Json said = read_json(import(file()) / "config.json");
  EXPECT_EQ(said["dtype"], read_json(model / "config.json")["dtype"]);
}

TEST_F(Gguf, TheTokenizerComesBack) {
  const fs::path config = changed("qwen3", [](Json& json) { json["vocab_size"] = 4200; });
  NewModelOptions options;
  options.config = (config / "config.json").string();
  options.output = (folder_ / "model").string();
  options.tokenizer = (kFixtures / "tokenizers/qwen3").string();
  ASSERT_EQ(run_new_model(options), 0);
  std::ofstream(folder_ / "model/chat_template.jinja") << "{% for m in messages %}{{ m.content }}{% endfor %}";
  std::ofstream(folder_ / "model/tokenizer_config.json")
      << R"({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"})";
  export_to(file(), folder_ / "model");
  const fs::path back = import(file());
  const Tokenizer a = Tokenizer::load(folder_ / "model"), b = Tokenizer::load(back);
  EXPECT_EQ(a.encode("Of 128 tokens, two are hers.", false), b.encode("Of 128 tokens, two are hers.", false));
  EXPECT_EQ(a.special_tokens().eos, b.special_tokens().eos);
  EXPECT_EQ(a.special_tokens().pad, b.special_tokens().pad);
  EXPECT_EQ(a.chat_template(), b.chat_template());
  EXPECT_EQ(a.vocab_size(), b.vocab_size());
}

TEST_F(Gguf, AdaptersAreTheirProducts) {
  for (const std::string name : {"llama/lora_attention_final", "mixtral/lora_experts_final", "qwen3_moe/split_adapter",
                                 "gpt_oss/lora_experts_final", "granitemoe/lora_experts_final"}) {
    SCOPED_TRACE(name);
    const fs::path adapter = kFixtures / "goldens" / name, base = adapter.parent_path() / "model";
    ExportOptions options;
    options.input = adapter.string();
    options.model = base.string();
    options.output = file("adapter.gguf").string();
    options.force = true;
    ASSERT_EQ(run_export(options), 0);
    const fs::path merged = folder_ / "merged";
    MergeOptions merge;
    merge.model = base.string(), merge.adapter = adapter.string(), merge.output = merged.string(), merge.force = true;
    ASSERT_EQ(run_merge(merge), 0);
    export_to(file("base.gguf"), base, "f32");
    export_to(file("merged.gguf"), merged, "f32");
    const GgufFile lora(file("adapter.gguf")), before(file("base.gguf")), after(file("merged.gguf"));
    EXPECT_EQ(lora.metadata().text("general.type"), "adapter");
    const double alpha = *lora.metadata().number("adapter.lora.alpha");
    const auto values = [](const GgufFile& gguf, const std::string& of) {
      const GgufEntry& entry = *gguf.find(of);
      std::vector<float> floats(static_cast<size_t>(entry.numel()));
      gguf.read_floats(entry, 0, entry.numel(), floats.data());
      return floats;
    };
    size_t adapted = 0;
    for (const GgufEntry& entry : before.entries()) {
      std::vector<float> sum = values(before, entry.name);
      if (lora.find(entry.name + ".lora_a") != nullptr) {
        ++adapted;
        const std::vector<float> a = values(lora, entry.name + ".lora_a"), b = values(lora, entry.name + ".lora_b");
        const auto columns = static_cast<size_t>(entry.shape.back()),
                   rows = static_cast<size_t>(*(entry.shape.end() - 2));
        const auto rank = static_cast<size_t>(lora.find(entry.name + ".lora_b")->shape.back());
        for (size_t at = 0; at < sum.size(); ++at) {
          const size_t row = at / columns, matrix = row / rows;
          double product = 0;
          for (size_t r = 0; r < rank; ++r)
            product += b[row * rank + r] * a[(matrix * rank + r) * columns + at % columns];
          sum[at] += static_cast<float>(product * alpha / static_cast<double>(rank));
        }
      }
      EXPECT_LE(relative_difference(sum, values(after, entry.name)), 1e-6) << entry.name;
    }
    EXPECT_EQ(2 * adapted, lora.entries().size());
  }
}

TEST_F(Gguf, WhatFilesCannotSayIsRefused) {
  EXPECT_THAT(export_refusal(golden("qwen2_moe")), HasSubstr("decoder_sparse_step, mlp_only_layers"));
  EXPECT_THAT(export_refusal(golden("olmoe_clip")), HasSubstr("clip_qkv"));
  EXPECT_THAT(export_refusal(golden("olmoe")), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(export_refusal(changed("deepseek_v3", [](Json& json) { json["rope_interleave"] = false; })),
              HasSubstr("rope_interleave"));
  EXPECT_THAT(export_refusal(golden("deepseek_v3_halves")), HasSubstr("q_a_proj.bias' has no name"));
  EXPECT_THAT(export_refusal(golden("granitemoehybrid_rope")), HasSubstr("in_proj.bias' has no name"));
  EXPECT_THAT(export_refusal(golden("ernie4_5_moe_every_second")), HasSubstr("layers that have experts"));
  EXPECT_THAT(export_refusal(golden("dots1")), HasSubstr("num_key_value_heads"));
  EXPECT_THAT(export_refusal(changed("gpt_oss", [](Json& json) { json["swiglu_limit"] = 6.0; })),
              HasSubstr("swiglu_limit"));
  EXPECT_THAT(export_refusal(changed("deepseek_v3_yarn",
                                     [](Json& json) {
                                       json["rope_parameters"].erase("mscale");
                                       json["rope_parameters"].erase("mscale_all_dim");
                                     })),
              HasSubstr("mscale_all_dim"));
  EXPECT_THAT(export_refusal(golden("deepseek_v2_yarn")), HasSubstr("n_group"));
  EXPECT_THAT(export_refusal(golden("nemotron_h")), HasSubstr("layers_block_type"));
  EXPECT_THAT(export_refusal(golden("nemotron_h_groups")), HasSubstr("in_proj.bias' has no name"));
  EXPECT_THAT(export_refusal(changed("qwen3_moe", [](Json& json) { json["norm_topk_prob"] = false; })),
              HasSubstr("norm_topk_prob"));
  EXPECT_THAT(export_refusal(changed(
                  "qwen3",
                  [](Json& json) {
                    json["rope_parameters"] = {{"rope_type", "dynamic"}, {"factor", 2.0}, {"rope_theta", 10000.0}};
                  })),
              HasSubstr("rope_scaling"));
  EXPECT_THAT(export_refusal(changed("qwen3",
                                     [](Json& json) {
                                       json["rope_parameters"] = {{"rope_type", "yarn"},
                                                                  {"factor", 4.0},
                                                                  {"attention_factor", 2.0},
                                                                  {"original_max_position_embeddings", 128},
                                                                  {"rope_theta", 10000.0}};
                                     })),
              HasSubstr("attention_factor"));
  EXPECT_THAT(export_refusal(golden("llama"), "q4_k"), HasSubstr("'q4_k' is not a type"));
  EXPECT_THAT(export_refusal(golden("llama"), "q4_k_m"), HasSubstr("is not a type"));
  const fs::path dora = kFixtures / "goldens/qwen3_moe/lora_dora_final";
  EXPECT_THAT(refusal([&] {
                run_gguf_export({dora.string(), file("no.gguf").string(), golden("qwen3_moe").string(), "", true});
              }),
              HasSubstr("DoRA"));
  const fs::path latent = kFixtures / "goldens/deepseek_v3/lora_attention_final";
  EXPECT_THAT(refusal([&] {
                run_gguf_export({latent.string(), file("no.gguf").string(), golden("deepseek_v3").string(), "", true});
              }),
              HasSubstr("does not apply an adapter of 'blk.0.attn_"));
  ExportOptions options;
  options.input = golden("llama").string();
  options.output = file("no.gguf").string();
  options.dtype = "float32";
  EXPECT_THAT(refusal([&] { run_export(options); }), HasSubstr("not for GGUF files"));
  options.dtype.clear();
  options.format = "onnx";
  EXPECT_THAT(refusal([&] { run_export(options); }), HasSubstr("'onnx' is not a format"));
  EXPECT_FALSE(fs::exists(file("no.gguf")));
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_EQ(entry.path().filename().string().find("hone-"), std::string::npos) << entry.path();
  }
}

TEST_F(Gguf, ScalingsOfRopeComeBack) {
  const std::pair<const char*, Json> scalings[] = {
      {"qwen3", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 10000.0}}},
      {"qwen3_moe",
       {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}, {"rope_theta", 10000.0}}},
      {"llama",
       {{"rope_type", "llama3"},
        {"factor", 32.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", 8192},
        {"rope_theta", 500000.0}}}};
  for (const auto& [name, scaling] : scalings) {
    const fs::path model = changed(name, [&](Json& json) { json["rope_parameters"] = scaling; });
    export_to(file(), model, "f32");
    const Json back = read_json(import(file()) / "config.json");
    EXPECT_EQ(back["rope_theta"], scaling["rope_theta"]);
    for (const char* key : {"rope_type", "factor"}) EXPECT_EQ(back["rope_scaling"][key], scaling[key]) << name;
    EXPECT_EQ(folder_logits(folder_ / "back"), folder_logits(model)) << name;
  }
}

TEST_F(Gguf, LayersThatPredictFurtherTokensAreLeftOut) {
  export_to(file(), golden("glm4_moe"), "f32");
  const GgufFile good(file());
  GgufMetadata keys = good.metadata();
  const int64_t layers = *keys.integer("glm4moe.block_count");
  keys.set("glm4moe.block_count", layers + 1);
  keys.set("glm4moe.nextn_predict_layers", int64_t{1});
  std::vector<GgufWriter::Announced> announced;
  for (const GgufEntry& entry : good.entries()) announced.push_back({entry.name, entry.type, entry.shape});
  announced.push_back({"blk." + std::to_string(layers) + ".nextn.enorm.weight", GgufType::kF32, {4}});
  GgufWriter writer(file("more.gguf"), keys, announced);
  for (const GgufEntry& entry : good.entries()) {
    std::vector<float> values(static_cast<size_t>(entry.numel()));
    good.read_floats(entry, 0, entry.numel(), values.data());
    writer.write_floats(values);
  }
  writer.write_floats(std::vector<float>(4, 1.0f));
  fs::rename(writer.complete(), file("more.gguf"));
  expect_same_values(Checkpoint::open(golden("glm4_moe")), Checkpoint::open(import(file("more.gguf"))));
}

TEST_F(Gguf, FilesOfOtherModelsAreRefused) {
  export_to(file(), golden("qwen3"), "f32");
  const GgufFile good(file());
  /// The file with other keys, or without its last tensor.
  const auto message = [&](const std::function<void(GgufMetadata&)>& change, size_t tensors) {
    GgufMetadata keys = good.metadata();
    change(keys);
    std::vector<GgufWriter::Announced> announced;
    for (size_t i = 0; i < tensors; ++i) {
      const GgufEntry& entry = good.entries()[i];
      announced.push_back({entry.name, entry.type, entry.shape});
    }
    GgufWriter writer(file("bad.gguf"), keys, announced);
    for (size_t i = 0; i < tensors; ++i) {
      const GgufEntry& entry = good.entries()[i];
      std::vector<float> values(static_cast<size_t>(entry.numel()));
      good.read_floats(entry, 0, entry.numel(), values.data());
      writer.write_floats(values);
    }
    fs::rename(writer.complete(), file("bad.gguf"));
    return refusal([&] { run_gguf_import({.input = file("bad.gguf").string(), .output = (folder_ / "no").string()}); });
  };
  const size_t all = good.entries().size();
  const auto with = [&](const char* key, GgufValue value) {
    return message([&](GgufMetadata& keys) { keys.set(key, std::move(value)); }, all);
  };
  EXPECT_THAT(message([](GgufMetadata&) {}, all - 2), HasSubstr("has no tensor"));
  EXPECT_THAT(with("general.architecture", std::string("gpt5")), HasSubstr("'gpt5' is not read"));
  EXPECT_THAT(with("general.type", std::string("adapter")), HasSubstr("not a model"));
  EXPECT_THAT(with("qwen3.attention.sliding_window", int64_t{64}), HasSubstr("sliding_window' is not supported"));
  EXPECT_THAT(with("qwen3.feed_forward_length", int64_t{100}), HasSubstr("another shape"));
  EXPECT_THAT(with("qwen3.embedding_length", std::string("many")), HasSubstr("not an integer"));
  EXPECT_THAT(with("qwen3.rope.scaling.type", std::string("longrope")), HasSubstr("'longrope' is not supported"));
  EXPECT_THAT(with("qwen3.block_count", int64_t{1} << 30), HasSubstr("block_count' is"));
  EXPECT_THAT(with("qwen3.attention.key_length", int64_t{0}), HasSubstr("key_length' is 0"));
  EXPECT_THAT(with("qwen3.nextn_predict_layers", int64_t{99}), HasSubstr("nextn_predict_layers' is 99"));
  EXPECT_THAT(with("split.count", int64_t{3}), HasSubstr("one part of several"));
  EXPECT_FALSE(fs::exists(folder_ / "no"));
  EXPECT_EQ(message([](GgufMetadata&) {}, all), "");
  EXPECT_TRUE(fs::exists(folder_ / "no/model.safetensors"));
}

}  // namespace
}  // namespace hone
