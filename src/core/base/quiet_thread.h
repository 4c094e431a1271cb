// A helper thread that receives no signals.
#pragma once

#include <functional>
#include <thread>

namespace hone {

/// Starts `body` in a thread with all signals blocked: SIGTERM and SIGINT go to the training thread, and a connection
/// closed by a peer is an error of write(), not a SIGPIPE that ends the program. Threads that `body` starts inherit the
/// mask.
std::thread quiet_thread(std::function<void()> body);

}  // namespace hone
