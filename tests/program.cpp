#include "program.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "core/base/philox.h"
#include "device_main.h"
#include "run_noise.h"
#include "weights/safetensors.h"

extern char** environ;

namespace hone {

Folder::Folder() {
  std::string name = (std::filesystem::temp_directory_path() / "hone_run_XXXXXX").string();
  path_ = mkdtemp(name.data()) ? name : "";
  EXPECT_FALSE(path_.empty());
}

Folder::~Folder() {
  std::error_code error;
  std::filesystem::remove_all(path_, error);
}

std::string Folder::write(const std::string& name, const std::string& text) const {
  const std::filesystem::path path = path_ / name;
  std::filesystem::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
  return path.string();
}

Process::Process(const std::vector<std::string>& arguments) {
  const std::string program = hone_program();
  std::vector<std::string> words = {program};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, 1, (folder_ / "out").c_str(), O_WRONLY | O_CREAT, 0644);
  posix_spawn_file_actions_addopen(&files, 2, (folder_ / "err").c_str(), O_WRONLY | O_CREAT, 0644);
  EXPECT_EQ(posix_spawn(&id_, program.c_str(), &files, nullptr, pointers.data(), environ), 0) << program;
  posix_spawn_file_actions_destroy(&files);
}

Process::~Process() {
  if (id_ < 0) return;
  kill(id_, SIGKILL);
  waitpid(id_, nullptr, 0);
}

bool Process::runs() const {
  siginfo_t ended{};
  return waitid(P_PID, static_cast<id_t>(id_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 && ended.si_pid == 0;
}

std::string Process::errors() const { return read_file(folder_ / "err"); }

void Process::send(int signal) const { kill(id_, signal); }

Outcome Process::wait() {
  int status = 0;
  waitpid(id_, &status, 0);
  id_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(folder_ / "out"),
          read_file(folder_ / "err")};
}

std::string hone_program() { return test_run().program.empty() ? HONE_BINARY : test_run().program.string(); }

Outcome run_hone(const std::vector<std::string>& arguments) { return Process(arguments).wait(); }

std::string read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

std::vector<Json> read_json_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  return lines;
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

Json tiny_config() {
  return {{"architectures", {"Qwen3MoeForCausalLM"}},
          {"model_type", "qwen3_moe"},
          {"dtype", "float32"},
          {"vocab_size", 64},
          {"hidden_size", 32},
          {"intermediate_size", 48},
          {"moe_intermediate_size", 16},
          {"num_hidden_layers", 2},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 8},
          {"num_experts", 4},
          {"num_experts_per_tok", 2},
          {"norm_topk_prob", true},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-6},
          {"rope_theta", 10000.0},
          {"initializer_range", 0.05},
          {"router_aux_loss_coef", 0.01},
          {"tie_word_embeddings", false}};
}

std::string make_model(const Folder& folder, const Json& config, const std::string& tokenizer) {
  std::vector<std::string> arguments = {
      "init", "--new-model", folder.write("config.json", config.dump()), (folder / "model").string(), "--seed", "3"};
  if (!tokenizer.empty()) arguments.insert(arguments.end(), {"--tokenizer", tokenizer});
  const Outcome outcome = run_hone(arguments);
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  return (folder / "model").string();
}

std::string jittered_model(const std::string& model, uint64_t seed, DType dtype) {
  const std::filesystem::path copy = fmt::format("{}_{}_jittered_{}", model, name_of(dtype), seed);
  if (std::filesystem::exists(copy)) return copy.string();
  std::filesystem::copy(model, copy, std::filesystem::copy_options::recursive);
  const SafetensorsFile file(std::filesystem::path(model) / "model.safetensors");
  std::vector<SafetensorsWriter::Announced> announced;
  for (const SafetensorsEntry& entry : file.entries()) announced.push_back({entry.name, DType::kF32, entry.shape});
  SafetensorsWriter writer(copy / "model.safetensors", announced);
  for (size_t i = 0; i < announced.size(); ++i) {
    std::vector<float> values = file.read_floats(announced[i].name);
    jitter(values, dtype, mix_key(seed, i));
    writer.write(values.data(), values.size() * sizeof(float));
  }
  writer.finish();
  return copy.string();
}

std::string progressions(int rows, uint64_t seed) {
  PhiloxSequence random(seed);
  std::string text;
  for (int row = 0; row < rows; ++row) {
    const auto begin = static_cast<int64_t>(random.below(60)), step = static_cast<int64_t>(1 + random.below(3));
    const auto length = static_cast<int64_t>(8 + random.below(9));
    Json ids = Json::array();
    for (int64_t i = 0; i < length; ++i) ids.push_back((begin + i * step) % 60);
    text += Json{{"input_ids", ids}}.dump() + "\n";
  }
  return text;
}

std::string random_tokens(int rows, uint64_t seed) {
  PhiloxSequence random(seed);
  std::string text;
  for (int row = 0; row < rows; ++row) {
    Json ids = Json::array();
    for (int i = 0; i < 12; ++i) ids.push_back(random.below(60));
    text += Json{{"input_ids", ids}}.dump() + "\n";
  }
  return text;
}

std::vector<std::string> train_arguments(const std::string& model, const std::string& data,
                                         const std::filesystem::path& output, const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"train",
                                        "model_name_or_path=" + model,
                                        "datasets=" + data,
                                        "output_dir=" + output.string(),
                                        "max_length=32",
                                        "per_device_train_batch_size=2",
                                        "gradient_accumulation_steps=2",
                                        "lr_scheduler_type=constant",
                                        "warmup_steps=0",
                                        "learning_rate=3e-3",
                                        "threads=1",
                                        "device=" + test_run().device};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

}  // namespace hone
