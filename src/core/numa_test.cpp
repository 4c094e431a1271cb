#include "core/numa.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "core/buffer.h"
#include "core/thread_pool.h"

namespace hone {
namespace {

TEST(Numa, ListsOfCoresAreReadAsLinuxWritesThem) {
  EXPECT_EQ(parse_core_list("0-3,8\n"), (std::vector<int>{0, 1, 2, 3, 8}));
  EXPECT_EQ(parse_core_list("5"), (std::vector<int>{5}));
  EXPECT_TRUE(parse_core_list("").empty());
  EXPECT_TRUE(parse_core_list("\n").empty());
  EXPECT_EQ(parse_core_list("1,x"), (std::vector<int>{1}));
  EXPECT_TRUE(parse_core_list("2-").empty());
}

TEST(Numa, NodesWithoutCoresOfThisProcessAreNone) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "hone_numa_nodes";
  std::filesystem::remove_all(folder);
  const std::vector<NumaNode> own = numa_nodes();
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  const auto write = [&](const char* node, const std::string& cores) {
    std::filesystem::create_directories(folder / node);
    std::ofstream(folder / node / "cpulist") << cores << "\n";
  };
  write("node1", "");  // memory only
  write("node10", std::to_string(core));
  write("node2", std::to_string(core) + ",1000000");
  write("nodes", "0");
  write("node", "0");
  const std::vector<NumaNode> nodes = numa_nodes(folder);
  ASSERT_EQ(nodes.size(), 2u);
  EXPECT_EQ(nodes[0].number, 2);
  EXPECT_EQ(nodes[0].cores, (std::vector<int>{core}));
  EXPECT_EQ(nodes[1].number, 10);
  std::filesystem::remove_all(folder);
  EXPECT_TRUE(numa_nodes(folder).empty());
}

TEST(Numa, APoolHasAThreadForEachCoreThatItsMakerMayRunOn) {
  EXPECT_EQ(ThreadPool().size(), usable_cores());
  std::thread([] {
    cpu_set_t cores;
    ASSERT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
    int first = 0;
    while (!CPU_ISSET(first, &cores)) ++first;
    CPU_ZERO(&cores);
    CPU_SET(first, &cores);
    ASSERT_EQ(sched_setaffinity(0, sizeof(cores), &cores), 0);
    EXPECT_EQ(usable_cores(), 1);
    EXPECT_EQ(ThreadPool().size(), 1);
  }).join();
}

TEST(Numa, AThreadStaysOnItsNodeAndInterleavedMemoryIsMemory) {
  for (const NumaNode& node : numa_nodes()) {
    std::thread([&] {
      run_on(node);
      cpu_set_t cores;
      ASSERT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
      EXPECT_EQ(CPU_COUNT(&cores), static_cast<int>(node.cores.size()));
    }).join();
  }
  const Buffer buffer(Device{}, size_t{8} << 20);
  interleave_pages(buffer.data(), buffer.size());
  std::memset(buffer.data(), 1, buffer.size());
  EXPECT_EQ(buffer.data()[buffer.size() - 1], std::byte{1});
}

}  // namespace
}  // namespace hone
