// What generated code says of a device: its buffers, locks, descriptors, channels, routes and cores, as constants.
#pragma once

#include "vnpu/base.h"

namespace vnpu::aie {

class Core;
class Fiber;

struct Place {
  int column, row;
};

struct BufferTable {
  const char *name;
  Place place;
  i64 bytes;
  const void *initial;  // null: zeros
  int address;          // in the tile's memory
};

struct LockTable {
  const char *name;
  Place place;
  int number, init;
};

// A dimension of an access pattern, outermost first; strides and counts are elements, `before` and `after` padding.
struct Dimension {
  i64 size, stride, before, after;
};
constexpr int kMostDimensions = 4;

// A lock that a descriptor or a core uses: none where `lock` is negative.
struct LockUse {
  int lock = -1, value = 0;
  bool at_least = true;  // of an acquire: AcquireGreaterEqual
};

struct Packet {
  int id = -1, type = 0;  // id -1: no packet
};

// A buffer descriptor.
struct BdTable {
  int line, number;  // number: the register set it lies in
  int buffer;
  i64 offset, length;  // elements
  int element;         // bytes
  int dimensions;
  Dimension dimension[kMostDimensions];
  LockUse acquire, release;
  Packet packet;
  int next;  // the descriptor after it, or -1
  struct {
    i64 size, stride, current;
  } iteration;  // size 0: none
  bool is_given = false;  // the text says its number
};

// A task that a channel has in its queue when the device is loaded: the chain, run `repeat` + 1 times.
struct TaskTable {
  int channel, bd, repeat;
};

struct ChannelTable {
  Place place;
  bool sends;  // MM2S
  int number;
  int core = kDma;  // the core whose own port it is
  uint32_t pad_value = 0;  // what padding consists of
  // Else a DMA channel, or a tile's control port: it sends tokens and answers, and takes control packets.
  static constexpr int kDma = -1, kTokens = -2, kControl = -3;
};

struct ArbiterTable {
  Place place;
  int number;  // -1: the port before a tile, where nothing has been routed yet
};

struct SinkTable {
  int channel;
  bool keeps_header;
  int switches;  // on the way to it
};

// Where the words of a channel go: packets with this id, or all where the id is -1.
struct RouteTable {
  int source, id;
  int first_arbiter, arbiters;  // in `route_arbiters`, and in `route_parents` which of the route's lies before each; -1: none;
  // in `route_ports` by which port of the switch the route comes to each
  int first_sink, sinks;  // in `route_sinks`
};

struct CoreTable {
  Place place;
  Fiber (*run)(Core &core);
  int first_release, releases;  // the locks that it releases, in `core_releases`
};

struct CascadeTable {
  int from, to;  // cores
};

struct DeviceTable {
  const char *name;
  const BufferTable *buffer;
  int buffers;
  const LockTable *lock;
  int locks;
  const BdTable *bd;
  int bds;
  const TaskTable *task;
  int tasks;
  const ChannelTable *channel;
  int channels;
  const ArbiterTable *arbiter;
  int arbiters;
  const RouteTable *route;
  int routes;
  const int *route_arbiters;
  const int *route_parents;
  const int *route_ports;
  const SinkTable *route_sinks;
  const CoreTable *core;
  int cores;
  const int *core_releases;
  const CascadeTable *cascade;
  int cascades;
};

}  // namespace vnpu::aie
