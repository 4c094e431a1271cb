#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "config/config_reader.h"
#include "config/config_testing.h"
#include "config/resolve.h"
#include "core/base/error.h"
#include "core/text/json.h"

namespace hone {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = ConfigNode::Kind;

std::string failure(const std::string& text, bool json = false) {
  try {
    (void)parse_config_text(text, "run.yaml", json);
  } catch (const UserError& error) {
    return error.where() + " " + error.message();
  }
  return "";
}

TEST(ConfigReader, RemembersTheLineOfEveryKey) {
  const ConfigNode root = parse_config_text("# comment\nlr: 1e-4\n\ntraining:\n  epochs: 3\n", "run.yaml");
  EXPECT_EQ(root.find("lr")->where, "run.yaml:2");
  EXPECT_EQ(root.find("training")->find("epochs")->where, "run.yaml:5");
}

TEST(ConfigReader, KeepsRepeatedKeysSoThatTheyCanBeCompared) {
  EXPECT_EQ(parse_config_text("a: 1\na: 2\n", "run.yaml").members.size(), 2u);
}

TEST(ConfigReader, ReadsJsonWithTabsAndKnowsItsLines) {
  const ConfigNode root =
      parse_config_text("{\n\t\"lr\": 1e-4,\n\t\"d\": {\"a\":\"x\\ty\", \"b\": [1, null]}\n}", "run.json", true);
  EXPECT_EQ(root.find("lr")->where, "run.json:2");
  EXPECT_EQ(root.find("d")->find("a")->text, "x\ty");
  EXPECT_EQ(root.find("d")->find("b")->items[1].kind, Kind::kNull);
}

TEST(ConfigReader, NamesTheLineOfBrokenText) {
  EXPECT_THAT(failure("a: 1\nb: [1, 2\nc: 3\n"), StartsWith("run.yaml:3 this is not YAML"));
  EXPECT_THAT(failure("{\n\"a\": 1,\n}", true), StartsWith("run.yaml:3 this is not JSON"));
  EXPECT_THAT(failure("- a\n- b\n"), StartsWith("run.yaml:1 a configuration is a mapping"));
  EXPECT_THAT(failure("[a]: 1\n"), HasSubstr("a key must be text"));
}

TEST(ConfigReader, AFileIsOneDocument) {
  EXPECT_THAT(failure("a: 1\n---\nb: 2\n"), StartsWith("run.yaml:3 the file has more than one YAML document"));
  EXPECT_NE(failure("a: 1\n---\n"), "");
  EXPECT_EQ(parse_config_text("---\na: 1\n", "run.yaml").members.size(), 1u);
  EXPECT_EQ(parse_config_text("a: 1\n...\n", "run.yaml").members.size(), 1u);
  EXPECT_EQ(parse_config_text("# nothing\n", "run.yaml").kind, Kind::kMapping);
}

TEST(ConfigReader, BoundsWhatAFileCanBecome) {
  std::string bomb = "a: &a [x, x, x, x, x, x, x, x, x, x]\n";
  for (char c = 'b'; c < 'j'; ++c) {
    bomb += std::string(1, c) + ": &" + c + " [";
    for (int i = 0; i < 10; ++i) bomb += std::string(i ? ", *" : "*") + static_cast<char>(c - 1);
    bomb += "]\n";
  }
  EXPECT_THAT(failure(bomb), HasSubstr("nests too deeply or repeats too much"));
  EXPECT_THAT(failure("a: " + std::string(40, '[') + std::string(40, ']')), HasSubstr("nests too deeply"));
  EXPECT_THAT(failure("a: &a [*a]\n"), HasSubstr("run.yaml"));
  EXPECT_THAT(failure(std::string((4u << 20) + 1, '#')), HasSubstr("larger than 4 MiB"));
}

TEST(ConfigReader, ReadsAFileAndSaysIfItCannot) {
  const auto path = std::filesystem::temp_directory_path() / "hone_config_reader_test.yaml";
  std::ofstream(path) << "seed: 7\n";
  EXPECT_EQ(read_config_file(path.string()).find("seed")->text, "7");
  std::filesystem::remove(path);
  EXPECT_THROW(read_config_file(path.string()), UserError);
  EXPECT_THROW(read_config_file("/"), UserError);
}

TEST(ConfigReader, AnEmptyFileIsAnEmptyMapping) { EXPECT_EQ(parse_config_text("", "run.yaml").kind, Kind::kMapping); }

TEST(Environment, ReplacesVariables) {
  setenv("HONE_TEST_DIR", "/data", 1);
  unsetenv("HONE_TEST_MISSING");
  EXPECT_EQ(expand_environment("${HONE_TEST_DIR}/a-${HONE_TEST_MISSING:-b}", "x"), "/data/a-b");
  EXPECT_EQ(expand_environment("$${HONE_TEST_DIR} $HOME ${", "x"), "${HONE_TEST_DIR} $HOME ${");
  EXPECT_EQ(parse_config_text("path: ${HONE_TEST_DIR}/m", "run.yaml").find("path")->text, "/data/m");
}

TEST(Environment, AVariableThatIsNotSetIsAnErrorWithItsLine) {
  unsetenv("HONE_TEST_MISSING");
  EXPECT_EQ(failure("a: 1\nb: ${HONE_TEST_MISSING}\n"),
            "run.yaml:2 the environment variable HONE_TEST_MISSING is not set");
}

TEST(NaturalJson, ReadsScalarsAsYamlDoes) {
  const ConfigNode root = parse_config_text("v: [1, -2, 1.5, true, no, \"1\", ~, {a: 1e3}, 9007199254740993]", "x");
  EXPECT_EQ(natural_json(*root.find("v")).dump(), R"([1,-2,1.5,true,"no","1",null,{"a":1000.0},9007199254740993])");
}

TEST(Shown, IsShortAndNeverCutsACharacter) {
  EXPECT_EQ(shown(parse_config_text("v: [a, {b: 1}]", "x").members[0].value), "[a, {b: 1}]");
  ConfigNode node;
  node.kind = Kind::kScalar;
  for (int i = 0; i < 40; ++i) node.text += "aé";
  EXPECT_EQ(shown(node).size(), 60u + std::string("…").size());  // 3 bytes a pair: 60 is a boundary
  node.text = "x" + node.text;
  EXPECT_TRUE(shown(node).ends_with("é…") || shown(node).ends_with("a…"));
}

using ::testing::AllOf;
using ::testing::ElementsAre;

TEST(Overrides, AreReadInAllSpellings) {
  const ConfigNode root = parse_overrides({"lr=1e-4", "--max-steps", "-1", "--seed=3", "--packing", "--datasets",
                                           "[a, {path: b}]", "training.epochs=2", "tpl={{ x }}", "empty="});
  ASSERT_EQ(root.members.size(), 8u);
  EXPECT_EQ(root.find("lr")->text, "1e-4");
  EXPECT_EQ(root.find("lr")->where, "command line: lr=1e-4");
  EXPECT_EQ(root.find("max-steps")->text, "-1");
  EXPECT_EQ(root.find("max-steps")->where, "command line: --max-steps -1");
  EXPECT_EQ(root.find("seed")->text, "3");
  EXPECT_EQ(root.find("packing")->text, "true");
  EXPECT_EQ(root.find("datasets")->items[1].find("path")->text, "b");
  EXPECT_EQ(root.find("training")->find("epochs")->text, "2");
  EXPECT_EQ(root.find("tpl")->text, "{{ x }}");
  EXPECT_EQ(root.find("empty")->kind, Kind::kNull);
}

TEST(Overrides, RefuseWhatIsNone) {
  EXPECT_THROW(parse_overrides({"word"}), UserError);
  EXPECT_THROW(parse_overrides({"=1"}), UserError);
  EXPECT_THROW(parse_overrides({"a..b=1"}), UserError);
  EXPECT_THROW(parse_overrides({"a=[1"}), UserError);
}

TEST(Overrides, ASwitchOrAKeyWithoutEffectNeverTakesTheNextAssignment) {
  // Switches, switches of other tools for keys with text, keys without effect, unknown keys.
  for (const char* flag :
       {"--packing", "--use_cpu", "--use_lora", "--enable_thinking", "--use_tensorboard", "--load_best", "--bf16",
        "--torch_compile", "--use_liger_kernel", "--attn_implementation", "--training.tf32", "--no_such_key"}) {
    const ConfigNode root = parse_overrides({flag, "learning_rate=5e-3", "--max_steps=2"});
    ASSERT_TRUE(root.find("learning_rate")) << flag;
    EXPECT_EQ(root.find("learning_rate")->text, "5e-3") << flag;
    EXPECT_EQ(root.members.size(), 3u) << flag;
  }
  const RunConfig run =
      resolved("", {"--torch_compile", "learning_rate=5e-3", "--use_liger_kernel", "max_steps=2"}).run;
  EXPECT_EQ(run.schedule.learning_rate, 5e-3);
  EXPECT_EQ(run.schedule.max_steps, 2);
}

TEST(Overrides, AKeyWithANumberNeverTakesTheNextAssignment) {
  EXPECT_THAT(refusal("", {"--learning_rate", "max_steps=2"}), HasSubstr("learning_rate is 'true': expected a number"));
}

TEST(Overrides, AKeyThatTakesTextTakesTheNextWord) {
  const RunConfig run = resolved("", {"--output_dir", "out/lr=1e-3", "--run_name", "a=b", "--optim_args",
                                      "clip_threshold=2", "--optim", "adafactor"})
                            .run;
  EXPECT_EQ(run.report.output_dir, "out/lr=1e-3");
  EXPECT_EQ(run.report.run_name, "a=b");
  EXPECT_EQ(run.optim.args["clip_threshold"], 2);
  EXPECT_THAT(refusal("", {"--output_dir", "--packing"}),
              AllOf(HasSubstr("--output_dir has no value"), HasSubstr("write --output_dir=VALUE")));
  EXPECT_EQ(resolved("", {"--resume"}).run.checkpoint.resume_from_checkpoint.text(), "auto");
}

TEST(Overrides, ASwitchTakesTrueAndFalse) {
  EXPECT_FALSE(resolved("", {"--packing", "false", "max_steps=2"}).run.data.packing);
  EXPECT_TRUE(resolved("", {"--packing", "true"}).run.data.packing);
  EXPECT_EQ(resolved("", {"--use_cpu", "true"}).run.machine.device, "cpu");
  EXPECT_THAT(refusal("", {"--packing", "words"}), HasSubstr("'words' is not an override"));
  EXPECT_FALSE(takes_word("torch_compile", "run.yaml"));
  EXPECT_TRUE(takes_word("torch_compile_mode", "max-autotune"));
}

TEST(Overrides, TwoNamesOfOneKeyThatDifferAreAnErrorNamingBoth) {
  EXPECT_EQ(refusal("", {"lr=1e-3", "learning_rate=2e-3"}),
            "learning_rate is stated twice with different values: 'lr: 1e-3' (command line: lr=1e-3) and "
            "'learning_rate: 2e-3' (command line: learning_rate=2e-3) | command line: learning_rate=2e-3 | keep one of "
            "them");
  EXPECT_THAT(refusal("", {"deepspeed_config=zero1", "fsdp=no_shard"}),
              AllOf(HasSubstr("deepspeed_config=zero1"), HasSubstr("fsdp=no_shard")));
  EXPECT_THAT(refusal("", {"enable_thinking=true", "chat_template_kwargs={enable_thinking: false}"}),
              HasSubstr("stated twice"));
  EXPECT_EQ(refusal("", {"lr=1e-3", "learning_rate=0.001"}), "");
  // The same name twice: the last one is used.
  EXPECT_EQ(resolved("", {"lr=1e-3", "--lr", "2e-3"}).run.schedule.learning_rate, 2e-3);
  EXPECT_EQ(resolved("", {"enable_thinking=true", "--enable-thinking=false"}).run.data.chat_template_kwargs,
            Json({{"enable_thinking", false}}));
}

TEST(Overrides, AnOptionOfAVerbCountsInsteadOfThem) {
  EXPECT_THAT(without_keys_of({"model=a", "--max_steps", "3", "--base-model", "b", "--packing", "model.name=c", "x"},
                              {"model_name_or_path=d"}),
              ElementsAre("--max_steps", "3", "--packing", "x"));
}

TEST(Overrides, TheFileIsNotReadForAKeyThatTheCommandLineStates) {
  const auto note = [](const ResolvedConfig& config) {
    return config.notes.empty() ? std::string() : config.notes.back();
  };
  // Two keys with the same meaning: the command line has precedence, and a note says so.
  const ResolvedConfig sharded = resolved("deepspeed_config: nowhere/zero3.json\n", {"zero_stage=1"});
  EXPECT_EQ(name_of(sharded.run.machine.zero_stage), "1");
  EXPECT_EQ(note(sharded),
            "deepspeed_config: nowhere/zero3.json (run.yaml:1) is replaced by command line: zero_stage=1");
  EXPECT_EQ(name_of(resolved("deepspeed_config: nowhere/zero3.json", {"fsdp=no_shard"}).run.machine.zero_stage), "0");
  const ResolvedConfig steps = resolved("num_train_epochs: 3\nmax_steps: 100\n", {"num_train_epochs=1"});
  EXPECT_EQ(steps.run.schedule.max_steps, std::nullopt) << "it would win over the epochs that were asked for";
  EXPECT_EQ(note(steps), "max_steps: 100 (run.yaml:2) is replaced by command line: num_train_epochs=1");
  EXPECT_EQ(resolved("num_train_epochs: 2", {"max_steps=-1"}).run.schedule.num_train_epochs, 2);
  EXPECT_EQ(resolved("saves_per_epoch: 2", {"save_steps=7"}).run.checkpoint.save_steps, 7);
  // An override removes a value that this version does not support or cannot parse.
  EXPECT_EQ(refusal("load_in_4bit: true", {"load_in_4bit=false"}), "");
  EXPECT_EQ(refusal("lr: fast", {"learning_rate=1"}), "");
  EXPECT_EQ(resolved("use_cpu: true", {"use_cpu=false"}).run.machine.device, "auto");
  EXPECT_EQ(resolved("lr: 0.5", {"learning_rate=null"}).run.schedule.learning_rate, 1e-5);
  EXPECT_EQ(resolved("use_auxiliary_loss: false\nauxiliary_loss_weight: 0.5", {"use_auxiliary_loss=true"})
                .run.model.router_aux_loss_coef,
            0.5);
}

using ::testing::Contains;
using ::testing::Not;

constexpr const char* kAxolotl =
    "base_model: m\nmodel_type: MixtralForCausalLM\nstrict: false\ndatasets: [a.jsonl]\nlocal_rank:\n"
    "sequence_len: 512\npad_to_sequence_len: true\nspecial_tokens:\nload_in_4bit: true\n";

TEST(UnknownKeys, AreNamedAllAtOnceBeforeAnyValueIsRead) {
  const std::string what = refusal(kAxolotl);
  EXPECT_THAT(what, StartsWith("3 unknown keys: 'model_type' (run.yaml:2), 'strict' (run.yaml:3), "
                               "'pad_to_sequence_len' (run.yaml:7) | run.yaml:2 |"));
  EXPECT_THAT(what, HasSubstr("this looks like Axolotl: hone convert-config run.yaml"));
  EXPECT_THAT(refusal("learning_rat: 1\nsed: 2\n", {"packin=true"}),
              AllOf(StartsWith("3 unknown keys:"), HasSubstr("Did you mean 'learning_rate'"),
                    HasSubstr("'packin' (command line: packin=true)"), Not(HasSubstr("looks like"))));
  EXPECT_THAT(refusal("model_name_or_path: m\nstage: sft\ndataset: a\ndataset_dir: d\ncutoff_len: 8\n"
                      "plot_loss: true\nlora_target: all\n"),
              HasSubstr("this looks like LLaMA-Factory: hone convert-config run.yaml"));
}

TEST(UnknownKeys, OfOtherToolsSayNothingWhereTheyAreEmpty) {
  EXPECT_EQ(refusal("seed: 1\nlocal_rank:\nxformers_attention:\ngptq_groupsize:\nfsdp_config:\n"), "");
  EXPECT_THAT(refusal("seed: 1\nlerning_rate:\n"), StartsWith("unknown key 'lerning_rate'. Did you mean"));
}

TEST(UnknownKeys, AScriptIsPointedToTheTranslation) {
  EXPECT_THAT(refusal("seed: 1\nbatch_size: 8\nlerning_rate: 2\n"), StartsWith("'batch_size' is ambiguous"));
  try {
    (void)load_config("trl.sh", {});
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.fix(), HasSubstr("hone convert-config trl.sh"));
  }
}

TEST(Environment, NamesThatAreNotReadAreToldOfAtTheStart) {
  unsetenv("KT_SFT_PROFILE");
  setenv("ACCELERATE_KT_BACKEND", "AMXINT8", 1);
  setenv("SFT_TRACE_PATH", "t.json", 1);
  const ResolvedConfig config = load_config("", {"seed=1"});
  unsetenv("ACCELERATE_KT_BACKEND");
  unsetenv("SFT_TRACE_PATH");
  EXPECT_THAT(config.notes,
              Contains(StartsWith("not read from the environment: ACCELERATE_KT_BACKEND, SFT_TRACE_PATH;")));
  EXPECT_THAT(load_config("", {"seed=1"}).notes, Not(Contains(HasSubstr("not read from the environment"))));
}

}  // namespace
}  // namespace hone
