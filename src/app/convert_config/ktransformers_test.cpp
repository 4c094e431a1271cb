// The configurations that LLaMA-Factory publishes for KTransformers (tests/fixtures/config/ktransformers) convert, and
// the results are valid for models of the published shapes, whose files have headers and no weights.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "app/bench/bench_shapes.h"
#include "app/convert_config/convert_testing.h"
#include "app/train/train_verbs.h"
#include "core/base/error.h"
#include "core/text/json.h"
#include "models/hf_config.h"
#include "params/file_order.h"
#include "session/loaded_model.h"
#include "weights/tensor_dims.h"

namespace hone {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

const fs::path kFixtures = fs::path(HONE_SOURCE_DIR) / "tests/fixtures";

/// config.json of a shape, with other members.
Json shape(const std::string& name, const Json& members = Json::object()) {
  const auto found = std::find_if(bench_shapes().begin(), bench_shapes().end(),
                                  [&](const auto& known) { return known.first == name; });
  Json config = Json::parse(found->second);
  config.update(members);
  return config;
}

/// Qwen3.5-397B-A17B, whose text model is a part of a multimodal one.
Json qwen3_5() {
  Json text = shape("qwen3.5-35b-a3b", {{"hidden_size", 4096},
                                        {"num_hidden_layers", 60},
                                        {"num_attention_heads", 32},
                                        {"num_experts", 512},
                                        {"num_experts_per_tok", 10},
                                        {"moe_intermediate_size", 1024},
                                        {"shared_expert_intermediate_size", 1024},
                                        {"linear_num_value_heads", 64}});
  text.erase("architectures");
  return {{"architectures", {"Qwen3_5MoeForConditionalGeneration"}},
          {"model_type", "qwen3_5_moe"},
          {"tie_word_embeddings", false},
          {"text_config", std::move(text)}};
}

class KTransformersConfigs : public ConvertConfig {
 protected:
  void SetUp() override {
    ConvertConfig::SetUp();
    write("data/dataset_info.json",
          R"({"identity": {"file_name": "identity.json"}, "alpaca_en_demo": {"file_name": "alpaca_en_demo.json"},
              "mllm_demo": {"file_name": "mllm_demo.json", "formatting": "sharegpt",
                            "columns": {"messages": "messages", "images": "images"},
                            "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user",
                                     "assistant_tag": "assistant"}}})");
    Json rows = Json::array(), chats = Json::array();
    for (int i = 0; i < 40; ++i) {
      const std::string number = std::to_string(i);
      rows.push_back({{"instruction", "Say the number " + number}, {"input", ""}, {"output", "It is " + number}});
      chats.push_back(
          {{"messages",
            {{{"role", "user"}, {"content", "Say " + number}}, {{"role", "assistant"}, {"content", number}}}},
           {"images", Json::array()}});
    }
    write("data/identity.json", rows.dump());
    write("data/alpaca_en_demo.json", rows.dump());
    write("data/mllm_demo.json", chats.dump());
  }

  /// A copy of a published configuration, beside the data.
  std::string published(const std::string& name) {
    return write(name + ".yaml", read((kFixtures / "config/ktransformers" / (name + ".yaml")).string()));
  }

  /// Converts one; returns the path of the result.
  std::string convert(const std::string& name, bool accept = false) {
    config_ = converted(published(name), accept);
    return (folder_ / "run.yaml").string();
  }

  /// A model's folder: config.json, a tokenizer with the template of ChatML, and the header of a file whose weights
  /// take no place on the disk.
  std::string model(const Json& config, const std::string& tokenizer = "qwen3", const std::string& eos = "<|im_end|>") {
    write("model/config.json", config.dump());
    fs::copy_file(kFixtures / "tokenizers" / tokenizer / "tokenizer.json", folder_ / "model/tokenizer.json",
                  fs::copy_options::overwrite_existing);
    const Json tokens = {{"eos_token", eos}, {"chat_template", read((kFixtures / "templates/chatml.jinja").string())}};
    write("model/tokenizer_config.json", tokens.dump());
    write_header(config.contains("quantization_config"));
    return (folder_ / "model").string();
  }

  /// With DeepSeek's tokens, which the template deepseek_v3 writes.
  std::string model_of_deepseek(const Json& config) { return model(config, "deepseek", "<｜end▁of▁sentence｜>"); }

  /// The output of `hone validate`, or the error.
  std::string validated(const std::string& run, const std::string& model) {
    testing::internal::CaptureStdout();
    std::string problem;
    try {
      run_validate({run, {"model_name_or_path=" + model, "output_dir=" + (folder_ / "out").string()}});
    } catch (const UserError& error) {
      problem = error.what();
    }
    const std::string printed = testing::internal::GetCapturedStdout();
    return problem.empty() ? printed : problem;
  }

  ResolvedConfig config_;

 private:
  /// bfloat16; with `fp8`, matrices of layers but routers are blocks of 128 x 128 float8 with scales.
  void write_header(bool fp8) const {
    LoadedModel model(HfConfig::read(folder_ / "model"), {}, DType::kBF16);
    Json header = Json::object();
    int64_t end = 0;
    const auto add = [&](const std::string& name, const char* dtype, int64_t size, const std::vector<int64_t>& dims) {
      int64_t bytes = size;
      for (const int64_t dim : dims) bytes *= dim;
      header[name] = {{"dtype", dtype}, {"shape", dims}, {"data_offsets", {end, end + bytes}}};
      end += bytes;
    };
    for (const Parameter& p : model.store().all()) {
      const bool blocks = fp8 && p.spec().layer >= 0 && p.spec().kind != ParameterKind::kRouter;
      const FileLayout layout = p.spec().all_layouts().front();
      for (const FileTensor& tensor : layout) {
        const std::vector<int64_t> dims = dims_of(file_shape(tensor.order, tensor.shape));
        const bool matrix = blocks && dims.size() == 2;
        add(tensor.name, matrix ? "F8_E4M3" : "BF16", matrix ? 1 : 2, dims);
        if (matrix) add(tensor.name + "_scale_inv", "F32", 4, {(dims[0] + 127) / 128, (dims[1] + 127) / 128});
      }
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    const fs::path path = folder_ / "model/model.safetensors";
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&length), sizeof length);
    file << text;
    file.close();
    fs::resize_file(path, sizeof length + length + static_cast<uint64_t>(end));
  }
};

TEST_F(KTransformersConfigs, Qwen3MoeIsValid) {
  const std::string run = convert("qwen3moe");
  EXPECT_EQ(config_.run.lora.target_modules, (std::vector<std::string>{"all-linear", "all-experts"}));
  EXPECT_EQ(config_.run.lora.r, 8);
  EXPECT_EQ(config_.run.lora.alpha, 16.0) << "twice the rank";
  EXPECT_THAT(text_, HasSubstr("experts_device: cpu"));
  EXPECT_EQ(config_.run.model.expert_weight_dtype.name(), "auto");
  EXPECT_EQ(config_.run.data.datasets.size(), 2u);
  EXPECT_THAT(validated(run, model(shape("qwen3-235b-a22b"))), HasSubstr("valid: nothing was written"));
}

TEST_F(KTransformersConfigs, Qwen3_5MoeIsValid) {
  const std::string run = convert("qwen3_5moe");
  EXPECT_EQ(config_.run.model.expert_weight_dtype.name(), "bfloat16");
  EXPECT_EQ(config_.run.machine.threads, 96);
  EXPECT_THAT(text_, HasSubstr("kt_config.kt_model_max_length: 2176"));
  EXPECT_THAT(validated(run, model(qwen3_5())), HasSubstr("valid: nothing was written"));
}

TEST_F(KTransformersConfigs, DeepSeekV2IsValid) {
  const std::string run = convert("deepseek_v2");
  EXPECT_THAT(validated(run, model(shape("deepseek-v2-lite"))), HasSubstr("valid: nothing was written"));
}

TEST_F(KTransformersConfigs, DeepSeekV3InBfloat16IsValid) {
  const std::string run = convert("deepseek_v3");
  Json dense = shape("deepseek-v3");
  dense.erase("quantization_config");
  EXPECT_THAT(validated(run, model_of_deepseek(dense)), HasSubstr("valid: nothing was written"));
}

TEST_F(KTransformersConfigs, Int8ExpertsOfDeepSeekV3AreValid) {
  const std::string run = convert("deepseek_v3_int8");
  EXPECT_EQ(config_.run.model.expert_weight_dtype.name(), "int8");
  EXPECT_THAT(text_, HasSubstr("kt_weight_path: /path/to/routed-int8-experts"));
  EXPECT_THAT(validated(run, model_of_deepseek(shape("deepseek-v3"))), HasSubstr("valid: nothing was written"));
}

TEST_F(KTransformersConfigs, ImagesAreRefusedByName) {
  EXPECT_FALSE(refused(published("qwen3vlmoe")).empty());
  EXPECT_THAT(printed_, HasSubstr("names images, which are not trained on"));
  const std::string run = convert("qwen3vlmoe", true);
  EXPECT_THAT(validated(run, model(shape("qwen3-vl-30b-a3b"), "qwen3", "<|im_end|>")),
              HasSubstr("valid: nothing was written"));
}

/// Every key that KTransformers' own configuration knows has a rule.
TEST_F(KTransformersConfigs, EveryKeyIsUnderstood) {
  const std::string head = "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_target: all\nuse_kt: true\n";
  const std::vector<std::string> keys = {"kt_backend: AMXBF16",
                                         "kt_num_threads: 8",
                                         "kt_tp_enabled: true",
                                         "kt_threadpool_count: 2",
                                         "kt_weight_path: /w",
                                         "kt_non_expert_weight_path: /n",
                                         "kt_expert_weight_format: bf16",
                                         "kt_weight_lifecycle: ephemeral",
                                         "kt_expert_checkpoint_path: /e",
                                         "kt_num_gpu_experts: 0",
                                         "kt_skip_expert_loading: true",
                                         "kt_share_backward_bb: true",
                                         "kt_share_cache_pool: true",
                                         "kt_force_fused_expert_lora: true",
                                         "kt_max_cache_depth: 2",
                                         "kt_model_max_length: 4096",
                                         "kt_activation_policy: {cpu: retain, gpu: recompute}",
                                         "kt_lora_rank: 4",
                                         "kt_lora_alpha: 8",
                                         "kt_lora_dropout: 0.1",
                                         "kt_train_mode: lora",
                                         "kt_full_weight_grad: true",
                                         "kt_use_lora_experts: false",
                                         "kt_lora_expert_num: 2",
                                         "kt_lora_expert_intermediate_size: 64",
                                         "kt_checkpoint_files: [a]",
                                         "kt_sharded_metadata: {a: b}",
                                         "kt_wrap_fn: f",
                                         "kt_wrap_kwargs: {a: b}"};
  std::string flat = head, nested = head + "kt_config:\n  enabled: true\n";
  for (const std::string& key : keys) {
    flat += key + "\n";
    nested += "  " + key + "\n";
  }
  for (const std::string& text : {flat, nested}) {
    const ResolvedConfig config = converted(write("all.yaml", text));
    EXPECT_EQ(config.run.lora.r, 4);
    EXPECT_EQ(config.run.lora.alpha, 8.0);
    EXPECT_EQ(config.run.lora.dropout, 0.1);
    EXPECT_EQ(config.run.machine.threads, 8);
    EXPECT_THAT(text_, HasSubstr("experts_device: cpu"));
  }
  EXPECT_FALSE(refused(write("unknown.yaml", head + "kt_config: {kt_cache_depth: 2}\n")).empty());
  EXPECT_THAT(printed_, HasSubstr("no key of KTransformers"));
  EXPECT_FALSE(refused(write("small.yaml", head + "kt_config: {kt_use_lora_experts: true}\n")).empty());
  converted(write("gpu.yaml", head + "kt_num_gpu_experts: 8\n"));
  EXPECT_THAT(printed_, HasSubstr("not here yet    kt_num_gpu_experts: 8"));
}

TEST_F(KTransformersConfigs, BackendsThatSkipLoraFreezeTheExperts) {
  const std::string head = "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_target: all\nuse_kt: true\n";
  for (const auto& [backend, dtype] : {std::pair{"AMXBF16_SkipLoRA", "bfloat16"}, std::pair{"amxint8_skiplora", "int8"},
                                       std::pair{"AMXINT4_KGroup_SkipLoRA", "int4"}}) {
    const ResolvedConfig config = converted(write("skip.yaml", head + "kt_config: {kt_backend: " + backend + "}\n"));
    EXPECT_EQ(config.run.model.expert_weight_dtype.name(), dtype);
    EXPECT_EQ(config.run.lora.exclude_modules, std::vector<std::string>{"all-experts"});
    EXPECT_THAT(text_, HasSubstr(std::string("kt_backend: ") + backend));
  }
  const ResolvedConfig both =
      converted(write("skip.yaml", head + "kt_backend: AMXBF16_SkipLoRA\nexclude_modules: [q_proj]\n"));
  EXPECT_THAT(both.run.lora.exclude_modules, UnorderedElementsAre("all-experts", "q_proj"));
  converted(write("skip.yaml", head + "kt_backend: AMXBF16_SkipLoRA\ndataset: identity\n"));
  EXPECT_THAT(validated((folder_ / "run.yaml").string(), model(shape("deepseek-v2-lite"))),
              HasSubstr("valid: nothing was written"));
}

TEST_F(KTransformersConfigs, AcceleratesFileHoldsThemToo) {
  write("lf.yaml", "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_target: all\nuse_kt: true\n");
  write("accelerate.yaml",
        "distributed_type: FSDP\nmixed_precision: bf16\nkt_config:\n  kt_backend: AMXINT8\n  kt_num_threads: 6\n"
        "  kt_share_cache_pool: true\n  kt_lora_rank: 4\n");
  const RunConfig run = converted(write("s.sh",
                                        "ACCELERATE_KT_LORA_ALPHA=12\naccelerate launch --config_file accelerate.yaml "
                                        "llamafactory-cli train lf.yaml\n"))
                            .run;
  EXPECT_EQ(run.model.expert_weight_dtype.name(), "int8");
  EXPECT_EQ(run.machine.threads, 6);
  EXPECT_EQ(run.lora.r, 4);
  EXPECT_EQ(run.lora.alpha, 12.0) << "from the script's environment";
  EXPECT_EQ(name_of(run.machine.experts_device), "cpu");
}

TEST_F(KTransformersConfigs, OlderNamesMeanTheSame) {
  const std::string head = "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_target: all\nuse_kt: true\n";
  const RunConfig run =
      converted(write("old.yaml", head +
                                      "kt_config: {backend: AMXINT8, num_threads: 2, lora_rank: 8, lora_alpha: 16.0, "
                                      "share_cache_pool: true, max_cache_depth: 2}\n"))
          .run;
  EXPECT_EQ(run.model.expert_weight_dtype.name(), "int8");
  EXPECT_EQ(run.machine.threads, 2);
  EXPECT_EQ(run.lora.r, 8);
  EXPECT_FALSE(refused(write("old.yaml", head + "kt_config: {use_lora_experts: true}\n")).empty());
  EXPECT_THAT(printed_, HasSubstr("small MLPs beside the experts"));
}

TEST_F(KTransformersConfigs, FourBitsWithAScaleForARowAreRefusedWithNumbers) {
  const std::string head = "model_name_or_path: m\nstage: sft\nfinetuning_type: lora\nlora_target: all\nuse_kt: true\n";
  EXPECT_FALSE(refused(write("int4.yaml", head + "kt_backend: AMXINT4\nkt_weight_path: /w\n")).empty());
  EXPECT_THAT(printed_, HasSubstr("AMXINT4 rounds away 15 %"));
}

}  // namespace
}  // namespace hone
