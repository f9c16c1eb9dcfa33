// Control packets: words that write and read the memory and the locks of a tile, and what it answers.
#include "vnpu/aie/array.h"

namespace vnpu::aie {

namespace {

// Where locks lie among a tile's registers (aie-rt, xaiemlgbl_params.h), and how many there are.
struct LockRegisters {
  int first, count;
};

LockRegisters lock_registers(Place place) {
  if (place.row == 0) return {0x14000, 16};
  return place.row == 1 ? LockRegisters{0xC0000, 64} : LockRegisters{0x1F000, 16};
}

// The lock that a register is; null where it is none of the design's.
Lock *lock_at(Array &array, Place place, int address) {
  const LockRegisters registers = lock_registers(place);
  const int number = (address - registers.first) / 16;
  if (address < registers.first || number >= registers.count || address % 16) return nullptr;
  for (int i = 0; i < array.locks.size(); ++i) {
    const LockTable &table = *array.locks[i]->table;
    if (table.place.column == place.column && table.place.row == place.row && table.number == number) return array.locks[i];
  }
  return nullptr;
}

// The four bytes of a buffer at an address of a tile; null where no buffer is.
char *memory_at(Array &array, Place place, int address) {
  for (int i = 0; i < array.table.buffers; ++i) {
    const BufferTable &buffer = array.table.buffer[i];
    const i64 offset = address - buffer.address;
    if (buffer.place.column == place.column && buffer.place.row == place.row && offset >= 0 && offset + 4 <= buffer.bytes) {
      return array.memory[i] + offset;
    }
  }
  return nullptr;
}

[[noreturn]] void refuse(Place place, int address) {
  char name[80];
  name_place(name, int(sizeof(name)), place);
  fail(Site{"aie.packet_flow", 0},
       "a control packet goes to address 0x%05x of %s: only buffers and locks of the design are written and read by them",
       unsigned(address), name);
}

void write_word(Array &array, Place place, int address, uint32_t value) {
  if (char *const at = memory_at(array, place, address)) memcpy(at, &value, sizeof(value));
  else if (Lock *const lock = lock_at(array, place, address)) lock->set(int(value & 0x3F));
  else refuse(place, address);
}

uint32_t read_word(Array &array, Place place, int address) {
  uint32_t value = 0;
  if (const char *const at = memory_at(array, place, address)) memcpy(&value, at, sizeof(value));
  else if (const Lock *const lock = lock_at(array, place, address)) value = uint32_t(lock->value);
  else refuse(place, address);
  return value;
}

}  // namespace

Channel *Array::control_port(Place place) {
  for (int i = 0; i < channels.size(); ++i) {
    const ChannelTable &port = *channels[i]->table;
    if (port.core == ChannelTable::kTokens && port.place.column == place.column && port.place.row == place.row)
      return channels[i];
  }
  return nullptr;
}

void Control::take(Channel &channel, uint32_t word) {
  Array &array = *channel.array;
  const Place place = channel.table->place;
  if (left_ > 0) {
    write_word(array, place, address_, word);
    address_ += 4;
    --left_;
    return;
  }
  enum { kWrite, kRead };
  const int operation = int(word >> 22 & 3), beats = int(word >> 20 & 3) + 1;
  address_ = int(word & 0xFFFFF);
  if (operation == kWrite) {
    left_ = beats;
  } else if (operation == kRead) {
    Answer answer{int(word >> 24 & 0x1F), beats, {}};
    for (int i = 0; i < beats; ++i) answer.word[i] = read_word(array, place, address_ + 4 * i);
    Channel *const port = array.control_port(place);
    if (!port) {
      fail(Site{"aie.packet_flow", 0},
           "a control packet reads tile (%d, %d), which has no way for the answer: add an "
           "aie.packet_flow from its port TileControl",
           place.column, place.row);
    }
    port->answer(answer);
  } else {
    fail(Site{"aie.packet_flow", 0}, "operation %d of a control packet is not supported: 0 writes, 1 reads", operation);
  }
}

}  // namespace vnpu::aie
