// Programs with channels: tiles as coroutines, engines as tasks, channels between them.
//
// One thread runs a TaskLoop to its end. Its members take turns:
//   Process    a coroutine: the body of a tile, a segment or a launch
//   Task       an engine operation that a sequencer issued: a copy, a put or get, a herd, a segment
//   Sequencer  walks a launch or segment body in program order and issues its operations as tasks. A task is held back
//              only by earlier, unfinished tasks that touch the same bytes (one of them writing), by tokens, and by the
//              previous operation on the same end of the same channel. In a random schedule, only tokens order two
//              operations that both have tokens
//   Channel    a bundle of bounded queues; a put copies its block in, a get copies it out
//              or borrows it; several gets of one put share the block
// The first two are in task_loop.h, channels in channel.h, the memory of blocks in storage.h; sequencers are here.
#pragma once

#include "vnpu/channel.h"

namespace vnpu {

using Written = std::initializer_list<Use>;

template <class Body>
class RunTask final : public Task {
 public:
  RunTask(TaskLoop &task_loop, Body body) : Task(task_loop), body_(body) {}
  void start() override {
    {
      const StrandScope as(strand);
      body_();
    }
    finish();
  }

 private:
  Body body_;
};

class Sequencer {
 public:
  Sequencer(TaskLoop &task_loop, ExecutionPlace where) : task_loop_(task_loop), where_(where), strand_(*current_strand()) {}
  Sequencer(const Sequencer &) = delete;
  ~Sequencer();

  Arena arena;  // the buffers of the body

  // A piece of work that does not suspend.
  template <class Body>
  Token run(Site site, Dependencies after, std::initializer_list<Use> uses, Body body) {
    return work(site, after, uses, body, own_engine());
  }

  Token copy(Site site, Dependencies after, const Access &dst, const Access &src) {
    return work(site, after, {use(dst, true), use(src, false)}, [=] { dma(site, dst, src); }, Engine::kTransfer);
  }

  // A segment or herd, of `count` points.
  template <class Make>
  Token spawn(Site site, Dependencies after, std::initializer_list<Use> uses, const Ports *ports, i64 count, Make make) {
    return issue(new SpawnOf<Make>(task_loop_, site, ports, count, make), site, after, uses, Engine::kCores);
  }

  Token put(Site site, Dependencies after, Channel &channel, i64 index, const Access &side) {
    return transfer(site, after, channel, index, side, true);
  }
  Token get(Site site, Dependencies after, Channel &channel, i64 index, const Access &side) {
    return transfer(site, after, channel, index, side, false);
  }
  // For a buffer that passes blocks on.
  Token put(Site site, Dependencies after, Channel &channel, i64 index, const Access &side, RelayBuffer *relay) {
    return transfer(site, after, channel, index, side, true, relay);
  }
  Token get(Site site, Dependencies after, Channel &channel, i64 index, const Access &side, RelayBuffer *relay) {
    return transfer(site, after, channel, index, side, false, relay);
  }
  // A put of a launch whose only memory from outside is this one.
  Token put(Site site, Dependencies after, Channel &channel, i64 index, Access side, Written written) {
    side.stays = true;
    for (const Use &use : written) side.stays = side.stays && (side.high <= use.low || use.high <= side.low);
    return transfer(site, after, channel, index, side, true);
  }

  // Frees a buffer when everything issued before that uses it is done, with or without a token: on the device, buffers do not
  // move, and the compiler does not let the last use delay the deallocation.
  template <class Pointer>
  void dealloc(Site site, Pointer data, i64 extent) {
    const auto take_back = [this, site, data] { arena.dealloc(site, data); };
    auto *const task = new RunTask<decltype(take_back)>(task_loop_, take_back);
    task->is_release = true;
    issue(task, site, blocking(Token()), {writes(data, extent)}, Engine::kNone);
  }

  // Everything issued between the two waits for `after`; the token is done when all of it is.
  void open_group(const Token &after);
  Token close_group();

  // Suspends the body until a token, or everything that conflicts with `uses`, or everything, is done.
  struct Awaiter {
    Strand &strand;
    Token until;
    bool is_end;
    bool await_ready() const { return !until.unfinished(); }
    void await_suspend(Process::Handle handle);
    void await_resume() const {
      if (until.task()) strand.learn(until.task()->strand);
    }
  };
  Awaiter wait(const Token &token) { return Awaiter{strand_, token, false}; }
  Awaiter settle(std::initializer_list<Use> uses);
  Awaiter drain();

 private:
  struct Claim {
    Task *task;
    Use use;
  };
  static constexpr int kStretch = 16;
  struct End {  // the last operation on one end of a channel
    const Channel *channel;
    i64 index;
    bool is_put;
    Task *task;
  };
  struct Group {
    Token *after;
    int first_member;
    const IssueOrder *lineage;
  };

  template <class Body>
  Token work(Site site, Dependencies after, std::initializer_list<Use> uses, Body body, Engine engine) {
    if (!kChecks && !held_back(after.token, uses)) {
      task_loop_.take_turn();
      body();
      return Token();
    }
    return issue(new RunTask<Body>(task_loop_, body), site, after, uses, engine);
  }
  const IssueOrder *around() { return groups_.size() ? groups_[groups_.size() - 1].lineage : strand_.lineage; }
  Engine own_engine() const { return where_.around ? Engine::kNone : Engine::kHost; }
  bool held_back(const Token &after, std::initializer_list<Use> uses);
  Token issue(Task *task, Site site, Dependencies after, std::initializer_list<Use> uses, Engine engine);
  void await_tokens(Task &task, const Token &after);
  Token transfer(Site site, Dependencies after, Channel &channel, i64 index, const Access &side, bool is_put,
                 RelayBuffer *relay = nullptr);
  void await_conflicts(Task &task, std::initializer_list<Use> uses);
  void claim(const Claim &claim);
  Awaiter awaiter(Task *joined, bool is_end);
  void sweep();

  TaskLoop &task_loop_;
  ExecutionPlace where_;
  Strand &strand_;        // of the body itself
  Strand ended_;          // what the tasks did that were dropped from the lists
  List<Claim> claims_;    // what unfinished tasks touch
  List<Use> stretches_;   // the union of the uses of each group of claims
  Use written_{};         // the union of all that any task so far writes
  List<Task *> tasks_;    // unfinished tasks
  List<End> ends_;
  List<Group> groups_;
  List<Task *> members_;  // of the open groups
  int swept_ = 0;
  uint32_t body_ = new_body(), issued_ = 0;
};

}  // namespace vnpu
