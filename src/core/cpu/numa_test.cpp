#include "core/cpu/numa.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/base/error.h"
#include "core/cpu/node_loop.h"
#include "core/cpu/numa_testing.h"
#include "core/cpu/thread_pool.h"
#include "core/memory/buffer.h"
#include "core/stream/stream.h"

namespace hone {
namespace {

int cores_of_this_thread() {
  cpu_set_t cores;
  EXPECT_EQ(sched_getaffinity(0, sizeof(cores), &cores), 0);
  return CPU_COUNT(&cores);
}

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

TEST(Numa, ListsOfCoresAreWrittenAsLinuxWritesThem) {
  EXPECT_EQ(core_list({0, 1, 2, 3, 8}), "0-3,8");
  EXPECT_EQ(core_list({5}), "5");
  EXPECT_EQ(core_list({1, 3, 4}), "1,3-4");
  EXPECT_EQ(core_list({}), "");
}

TEST(Numa, MemoryOfANodeIsReadAsLinuxWritesIt) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "hone_numa_memory";
  std::filesystem::create_directories(folder / "node3");
  std::ofstream(folder / "node3" / "meminfo") << "Node 3 MemTotal:       16000 kB\nNode 3 MemFree:         5000 kB\n"
                                                 "Node 3 MemUsed:        11000 kB\nNode 3 HugePages_Total:     7\n";
  EXPECT_EQ(memory_of_node(3, folder).total, 16000u * 1024);
  EXPECT_EQ(memory_of_node(3, folder).free, 5000u * 1024);
  EXPECT_EQ(memory_of_node(4, folder).total, 0u);
  std::filesystem::remove_all(folder);
}

TEST(Numa, CoresAreDividedInOrder) {
  const std::vector<NumaNode> real = {{0, {0, 1, 2, 3}}, {2, {8, 9}}};
  const auto divided = [&](int count) {
    std::vector<std::pair<int, std::vector<int>>> nodes;
    for (const NumaNode& node : divided_nodes(real, count)) nodes.emplace_back(node.number, node.cores);
    return nodes;
  };
  using Nodes = std::vector<std::pair<int, std::vector<int>>>;
  EXPECT_EQ(divided(1), (Nodes{{0, {0, 1, 2, 3, 8, 9}}}));
  EXPECT_EQ(divided(3), (Nodes{{0, {0, 1}}, {0, {2, 3}}, {2, {8, 9}}}));
  EXPECT_EQ(divided(4), (Nodes{{0, {0}}, {0, {1, 2}}, {0, {3}}, {2, {8, 9}}}));
  const std::vector<NumaNode> of_one_core = divided_nodes({{1, {7}}}, 3);
  ASSERT_EQ(of_one_core.size(), 3u) << "nodes share a core";
  for (const NumaNode& node : of_one_core) EXPECT_EQ(node.cores, std::vector<int>{7});
}

TEST(Numa, AStatedNumberOfNodesIsChecked) {
  for (const char* wrong : {"0", "65", "two", "2x", "-1"}) {
    setenv("HONE_NUMA_NODES", wrong, 1);
    EXPECT_THROW(nodes_in_use(), UserError) << wrong;
  }
  unsetenv("HONE_NUMA_NODES");
  EXPECT_GE(nodes_in_use().size(), 1u);
  const StatedNodes three(3);
  EXPECT_EQ(nodes_in_use().size(), 3u);
}

TEST(Numa, ItemsOfANodeAreConsecutiveAndEachNodeHasAsMany) {
  for (const int nodes : {1, 2, 3, 8}) {
    for (const int64_t count : {1, 2, 5, 8, 128}) {
      for (int64_t i = 0; i < count; ++i) {
        const int node = node_of_item(i, count, nodes);
        EXPECT_LE(first_item_of_node(node, count, nodes), i);
        EXPECT_GT(first_item_of_node(node + 1, count, nodes), i);
      }
      EXPECT_EQ(first_item_of_node(nodes, count, nodes), count);
      for (int node = 0; node < nodes; ++node) {
        const int64_t own = first_item_of_node(node + 1, count, nodes) - first_item_of_node(node, count, nodes);
        EXPECT_GE(own, count / nodes);
        EXPECT_LE(own, (count + nodes - 1) / nodes);
      }
    }
  }
}

TEST(Numa, SpreadMemoryIsZeroAndMemory) {
  for (const int nodes : {1, 2, 3}) {
    const StatedNodes stated(nodes);
    constexpr size_t kItem = 5000;  // pages have parts of two items
    const Buffer buffer(Device{}, 64 + 40 * kItem);
    spread_items(buffer.data() + 64, 40 * kItem, 40);
    EXPECT_TRUE(
        std::all_of(buffer.data(), buffer.data() + buffer.size(), [](std::byte b) { return b == std::byte{}; }));
    std::memset(buffer.data(), 1, buffer.size());
  }
}

/// Lets the system refuse mbind(2) to the calling thread, as containers do; false if it cannot.
bool refuse_mbind() {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mbind, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = std::size(code), .filter = code};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

size_t pages_in_memory(const Buffer& buffer) {
  std::vector<unsigned char> pages((buffer.size() + 4095) / 4096);
  EXPECT_EQ(mincore(buffer.data(), buffer.size(), pages.data()), 0);
  return static_cast<size_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char p) { return p % 2 == 1; }));
}

TEST(Numa, PagesAreTouchedWhereTheyMayNotBePlaced) {
  const StatedNodes two(2);
  constexpr size_t kPages = 32;
  const Buffer placed(Device{}, kPages << 12), touched(Device{}, kPages << 12);
  spread_items(placed.data(), placed.size(), 4);
  if (may_place_pages()) {
    EXPECT_EQ(pages_in_memory(placed), 0u) << "placed, and committed when they are used";
  }
  bool refused = false;
  std::thread([&] {
    refused = refuse_mbind();
    spread_items(touched.data(), touched.size(), 4);
  }).join();
  if (!refused) GTEST_SKIP() << "no filter of system calls here";
  EXPECT_EQ(pages_in_memory(touched), kPages);
}

TEST(Numa, TouchedPagesAreZero) {
  const NumaNode node = nodes_in_use().front();
  const Buffer buffer(Device{}, size_t{9} << 12);
  touch_pages(buffer.data(), buffer.size(), &node);
  touch_pages(buffer.data() + 4096, 1);
  EXPECT_TRUE(std::all_of(buffer.data(), buffer.data() + buffer.size(), [](std::byte b) { return b == std::byte{}; }));
  EXPECT_EQ(cores_of_this_thread(), usable_cores()) << "other threads touched them";
}

TEST(Numa, ThreadsOfAPoolAreSpreadOverTheNodes) {
  EXPECT_EQ(ThreadPool(1).nodes(), 1) << "nothing to spread";
  const StatedNodes two(2);
  ThreadPool pool(4);
  EXPECT_EQ(pool.nodes(), 2);
  EXPECT_EQ(pool.node_of(0), 0);
  EXPECT_EQ(pool.node_of(3), 1);
  if (usable_cores() % 2 == 0) {
    EXPECT_EQ(pool.node_of(1) + pool.node_of(2), 1) << "as many of each";
  }
  Stream stream(Device{}, pool);
  std::vector<int> cores(4);
  std::barrier all_have_a_task(4);  // else a thread without a core at the moment may get none
  stream.enqueue([&](ThreadPool& threads) {
    threads.parallel_for(4, [&](int64_t, int thread) {
      cores[static_cast<size_t>(thread)] = cores_of_this_thread();
      all_have_a_task.arrive_and_wait();
    });
  });
  stream.synchronize();
  const std::vector<NumaNode> nodes = nodes_in_use();
  for (int thread = 0; thread < 4; ++thread) {  // thread 0 is the stream's own, which is bound, too
    const NumaNode& node = nodes[static_cast<size_t>(pool.node_of(thread))];
    EXPECT_EQ(cores[static_cast<size_t>(thread)], static_cast<int>(node.cores.size())) << "thread " << thread;
  }
}

TEST(NodeLoop, TakesEveryItemOnce) {
  for (const int nodes : {1, 2, 3, 5}) {
    const StatedNodes stated(nodes);
    for (const int threads : {1, 2, 4}) {
      ThreadPool pool(threads);
      for (const int64_t count : {0, 1, 2, 7, 1000}) {
        std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
        const auto run = [&](const std::function<int(int64_t)>& node_of) {
          parallel_for_on_nodes(pool, count, node_of, [&](int64_t i, int thread) {
            EXPECT_LT(thread, pool.size());
            ++calls[static_cast<size_t>(i)];
          });
        };
        run([&](int64_t i) { return node_of_item(i, count, pool.nodes()); });
        run([&](int64_t) { return pool.nodes() - 1; });  // the others help
        pool.parallel_for(1, [&](int64_t, int) { run([](int64_t) { return 0; }); });
        for (const auto& n : calls) EXPECT_EQ(n.load(), 3);
      }
    }
  }
}

TEST(NodeLoop, AThreadTakesItsOwnItemsFirstAndInOrder) {
  const StatedNodes two(2);
  ThreadPool pool(2);
  constexpr int64_t kCount = 64;
  std::vector<std::vector<int64_t>> taken(2);
  parallel_for_on_nodes(
      pool, kCount, [&](int64_t i) { return static_cast<int>(i % 2); },
      [&](int64_t i, int thread) {
        taken[static_cast<size_t>(thread)].push_back(i);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      });
  for (int thread = 0; thread < 2; ++thread) {
    const std::vector<int64_t>& mine = taken[static_cast<size_t>(thread)];
    const auto own = [&](int64_t i) { return i % 2 == pool.node_of(thread); };
    EXPECT_TRUE(std::is_partitioned(mine.begin(), mine.end(), own));
    const auto help = std::partition_point(mine.begin(), mine.end(), own);
    EXPECT_TRUE(std::is_sorted(mine.begin(), help));
    EXPECT_TRUE(std::is_sorted(help, mine.end()));
  }
}

TEST(NodeLoop, ThrowsWhatABodyThrowsAndWorksOn) {
  const StatedNodes two(2);
  ThreadPool pool(3);
  const auto node_of = [](int64_t i) { return static_cast<int>(i % 2); };
  std::atomic<int> calls{0};
  const auto fail = [&] {
    parallel_for_on_nodes(pool, 100000, node_of, [&](int64_t, int) {
      ++calls;
      throw std::runtime_error("a body");
    });
  };
  EXPECT_THROW(fail(), std::runtime_error);
  EXPECT_LE(calls.load(), pool.size()) << "nothing more begins";
  calls = 0;
  parallel_for_on_nodes(pool, 10, node_of, [&](int64_t, int) { ++calls; });
  EXPECT_EQ(calls.load(), 10);
}

}  // namespace
}  // namespace hone
