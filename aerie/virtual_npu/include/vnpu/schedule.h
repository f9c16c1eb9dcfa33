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

// What a task touches until it is done.
struct Claim {
  Task *task;
  Use use;
  uint32_t issue;  // the number of the task in its body
};

#if VNPU_CHECKS

// The claims to one buffer, in the order of their issue, under a tree of what each part of them touches: so a conflict is found
// without a look at all claims.
class BufferClaims {
 public:
  static void *operator new(size_t bytes) { return pool_allocate(i64(bytes)); }
  static void operator delete(void *claims) { pool_free(claims); }
  explicit BufferClaims(const Buffer *buffer) : buffer(buffer) {}
  void push(const Claim &claim);
  // Calls visit(claim) for each claim that conflicts with a use, from the latest on, until it returns true.
  template <class Visit>
  void each_conflict(const Use &use, Visit visit) {
    for (int i = around_[kLevels - 1].size() - 1; i >= 0; --i) {
      if (visit_below(kLevels - 1, i, use, visit)) return;
    }
  }

  const Buffer *const buffer;
  List<Claim> claims;

 private:
  static constexpr int kFan = 16, kLevels = 4;
  template <class Visit>
  bool visit_below(int level, int number, const Use &use, Visit visit);
  List<Use> around_[kLevels];  // of each kFan of the level below
  friend class Sequencer;
};

#endif

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

  // A launch, whose points have task loops of their own.
  template <class Body>
  Token launch(Site site, Dependencies after, std::initializer_list<Use> uses, Body body) {
    return work(site, after, uses, body, Engine::kCores);
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

#if VNPU_CHECKS
  // Lets the run stop before the operation that is issued next, when that begins.
  void stop_before_next() { stops_next_ = true; }
#endif

  // A loop that issues operations pauses when many more are unfinished than at its last pause, until nothing else can run. So
  // the number of tasks does not grow with the iterations, and the program waits for nothing that it would not wait for.
#if VNPU_CHECKS
  bool is_ahead() const { return unfinished_ >= most_unfinished_; }
  struct Pause {
    Sequencer &sequencer;
    bool await_ready() const { return false; }
    void await_suspend(Process::Handle handle) { sequencer.task_loop_.ready_last(handle); }
    void await_resume() const { sequencer.most_unfinished_ = sequencer.unfinished_ + kFarAhead; }
  };
  Pause pause() { return Pause{*this}; }
#endif

 private:
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
#if !VNPU_CHECKS
    if (!held_back(after.token, uses)) {
      task_loop_.take_turn();
      body();
      return Token();
    }
#endif
    return issue(new RunTask<Body>(task_loop_, body), site, after, uses, engine);
  }
  const IssueOrder *around() { return groups_.size() ? groups_[groups_.size() - 1].lineage : strand_.lineage; }
  Engine own_engine() const { return where_.around ? Engine::kNone : Engine::kHost; }
#if !VNPU_CHECKS
  bool held_back(const Token &after, std::initializer_list<Use> uses);
#endif
  Token issue(Task *task, Site site, Dependencies after, std::initializer_list<Use> uses, Engine engine);
  void await_tokens(Task &task, const Token &after);
  Token transfer(Site site, Dependencies after, Channel &channel, i64 index, const Access &side, bool is_put,
                 RelayBuffer *relay = nullptr);
  void await_conflicts(Task &task, std::initializer_list<Use> uses);
  void claim(const Claim &claim);
#if VNPU_CHECKS
  bool separates(const Claim &claim, const Use &use) const;
#endif
  Awaiter awaiter(Task *joined, bool is_end);
  void sweep();
  void sweep_claims();

  TaskLoop &task_loop_;
  ExecutionPlace where_;
  Strand &strand_;        // of the body itself
  Strand ended_;          // what the tasks did that were dropped from the lists
#if VNPU_CHECKS
  List<BufferClaims *> claims_;
  static constexpr int kFarAhead = 256;
  int unfinished_ = 0, most_unfinished_ = kFarAhead;  // tasks
  bool stops_next_ = false;
#else
  List<Claim> claims_;    // what unfinished tasks touch
  List<Use> stretches_;   // the union of the uses of each group of claims
#endif
  Use written_{};         // the union of all that any task so far writes
  List<Task *> tasks_;    // unfinished tasks
  List<End> ends_;
  List<Group> groups_;
  List<Task *> members_;  // of the open groups
  int swept_ = 0;
  uint32_t body_ = new_body(), issued_ = 0;
};

}  // namespace vnpu
