// Runs a network of a bundle from C++ on random numbers, and says how long it takes:
//
//     tunery compile zoo:mobilenet_v2 -o mobilenet_v2.tunery && tunery bundle mobilenet_v2.tunery -o bundle
//     g++ -std=c++17 examples/program.cpp -Ibundle/include -Lbundle/lib -ltunery -Wl,-rpath,bundle/lib -o program
//     ./program bundle/network
#include <chrono>
#include <iostream>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "tunery.h"

// A network with memory for its inputs and outputs; what fails is thrown.
class Network {
 public:
  explicit Network(const std::string &directory) : network_(tunery_open(directory.c_str(), 0), tunery_close) {
    check(network_ ? 0 : -1);
    for (int at = 0; at < tunery_inputs(network_.get()); ++at) {
      inputs.emplace_back(tunery_input(network_.get(), at)->bytes);
      check(tunery_bind_input(network_.get(), at, inputs.back().data(), inputs.back().size()));
    }
    for (int at = 0; at < tunery_outputs(network_.get()); ++at) {
      outputs.emplace_back(tunery_output(network_.get(), at)->bytes);
      check(tunery_bind_output(network_.get(), at, outputs.back().data(), outputs.back().size()));
    }
  }

  void run() { check(tunery_run(network_.get())); }
  const tunery_tensor &input(int at) const { return *tunery_input(network_.get(), at); }
  const tunery_tensor &output(int at) const { return *tunery_output(network_.get(), at); }

  std::vector<std::vector<char>> inputs, outputs;

 private:
  static void check(int failed) {
    if (failed) throw std::runtime_error(tunery_error());
  }

  std::unique_ptr<tunery_network, decltype(&tunery_close)> network_;
};

int main(int count, char **arguments) try {
  Network network(count > 1 ? arguments[1] : "bundle/network");
  std::mt19937 numbers(0);
  std::uniform_real_distribution<float> uniform(0, 1);
  for (std::size_t at = 0; at < network.inputs.size(); ++at) {
    if (network.input(static_cast<int>(at)).dtype != std::string("float32")) continue;
    float *first = reinterpret_cast<float *>(network.inputs[at].data());
    for (std::size_t i = 0; i < network.inputs[at].size() / sizeof(float); ++i) first[i] = uniform(numbers);
  }
  network.run();
  const int runs = 20;
  const auto began = std::chrono::steady_clock::now();
  for (int run = 0; run < runs; ++run) network.run();
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  for (std::size_t at = 0; at < network.outputs.size(); ++at) {
    const tunery_tensor &told = network.output(static_cast<int>(at));
    std::cout << told.name << ": " << told.dtype << ", " << told.bytes << " bytes\n";
  }
  std::cout << took.count() / runs << " ms, the mean of " << runs << " runs\n";
} catch (const std::exception &error) {
  std::cerr << error.what() << "\n";
  return 1;
}
