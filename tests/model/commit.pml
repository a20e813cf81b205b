/*
 * The commit of a migration: both agents, the network between them, what may go wrong, and an
 * operator. proto/PROTOCOL.md ("The commit") has the protocol; migrate-agent/commit/states/states.h has
 * the same states, events and records under the same names, and tests/model/walk_test.cc leads it
 * through the transitions that a simulation of this model prints. tests/model/run proves the
 * properties at the end of this file.
 *
 * What is modelled
 * - An agent's worker, and the recovery that follows on it, as one process for each side: the lock
 *   on the journal lets only one of them act. A crash loses everything but the journal and the
 *   copies of the process. An append is one step: torn by a crash it is absent, as it is if it failed
 *   and was undone. One that failed and may exist nevertheless ends the worker, so it is a crash as
 *   well.
 * - The source's daemon answers OutcomeRequest from the journal alone. While it is down, requests
 *   are lost.
 * - A source in awaiting whose host was restarted asks for the vote. That the destination has given up,
 *   has never begun or is gone is read from its variables; that it has voted is a message.
 * - The network is a set of messages. One that was sent arrives at any time or never, before or
 *   after others, and any number of times. UNDECIDED and UNKNOWN change nothing at the destination,
 *   so they are requests without a reply.
 * - Connections are cut at any time; either side may time out, fail, or be cancelled at
 *   any time before its promise.
 * - Outsiders send SIGCONT to a stopped copy, which runs then unless it is frozen, and SIGKILL to
 *   that of the destination as long as it is stopped.
 * - Strangers, other agents of the same authority, send every message that the peer could send. They
 *   are trusted only by an agent that does not compare their names with the journal's.
 * - An append whose sync failed and that could not be undone leaves a record only in memory
 *   (the decisive ones are modelled: both Committed). Its writer ends, the next reader sees the
 *   record, and a loss of power (HOSTS) removes it, unless a reader has written it again.
 * - A suspend is a migration without a destination. Its copy of VRAM in host memory, and VRAM itself
 *   with its keeper, outlive the agent. A resume is ordered as soon as possible.
 * - A job may be suspended before its migration begins, by an earlier one with a journal of its own.
 *   It stays stopped regardless of this migration's outcome, and is resumed as soon as no unfinished
 *   migration has it. At the destination, too, it can be resumed at any time once it has arrived: it
 *   counts as running.
 * - There is no bound on the number of faults: the states are finite without one. Faults
 *   may cease or not; if they do, everything must come to its end.
 *
 * Variants: HOSTS: hosts crash too, with all their processes. GONE: a host may be gone permanently
 * as well. With either, an operator decides if no agent can. The MUTATE_ switches each break one
 * rule; tests/model/run checks that the proof fails then.
 *
 * A simulation prints, for the walk: "T side state event state record", a transition; "R side
 * state", an agent that was restarted, and the state of its journal; "L side", a journal whose last
 * record is lost with the power; "O source state answer", an answer to OutcomeRequest.
 */

/* States of both sides, and the events and records of their journals, named as in states.h. */
mtype = { none,
          working, awaiting, discarded, confirmed, undone,  /* source */
          suspended, resuming,
          building, restored, running, gone,                /* destination */
          committed, aborted };                             /* both */
mtype = { keeper_started, detaching, ask_restore, vote_received, commit_confirmed, rolled_back,
          told_commit, told_abort, copy_lost, host_lost, resumed,
          failed, restarted, cleared, resolved_run_here, resolved_discard_here, ended };
mtype = { KeeperStarted, Detaching, Awaiting, Restored, Committed, Aborted, Resolved, Finished,
          Suspended, Resuming };
mtype = { UNDECIDED, COMMITTED, ABORTED };

/* The copies of the process, as the hosts' kernels know them. */
mtype = { absent,
          bound,      /* stopped, and ends with the worker */
          standing,   /* stopped by itself */
          runs, destroyed };
mtype source_copy = runs;
mtype destination_copy = absent;
bool source_frozen;         /* in a group that only root can thaw */
bool destination_frozen;
bool vram = true;           /* the source's copy has it, or a keeper holds it */
bool vram_copy;             /* a keeper has its content in host memory */
bool destination_keeps;     /* the same, of a job that arrives suspended */

/* Journals: the state that the records tell. */
mtype source_journal = working;
bool peer_noted;
bool detaching_noted;
mtype destination_journal = none;
bool copy_lost_noted;       /* what its Aborted says */
bool source_unsynced;       /* Committed is in memory alone */
bool destination_unsynced;

/* What an agent's process knows; lost with it. */
bool source_up = true;
bool source_worker = true;  /* else its recovery */
bool suspends;              /* it is a suspend */
bool was_suspended;         /* before it began, as its Began says */
mtype source_state = working;
byte source_step;           /* see source() */
bool source_refused;        /* the destination has no copy any more */
bool source_trouble;        /* a step failed, a cancel, a peer that is silent or slow */
bool destination_up = true;
bool destination_worker;
mtype destination_state = none;
byte destination_step;      /* see destination() */
bool owes_reply;
bool holds_copy;            /* has written Committed, and has not released the copy yet */
bool destination_trouble;

/* The migration's own connection. */
bool connection;

#define PREFLIGHT_REQUEST 0
#define RESTORE_REQUEST   1
#define RESTORE_REPLY     2
#define ABORT_REQUEST     3
#define COMMIT_REQUEST    4
#define COMMIT_REPLY      5
#define COMMIT_REFUSED    6
#define COPY_LOST         7
#define OUTCOME_REQUEST   8
#define OUTCOME_COMMITTED 9
#define OUTCOME_ABORTED   10
#define VOTE_TOLD         11  /* to a source whose host was restarted */
#define MESSAGES          12
bool network[MESSAGES];

bool faults_over;

/* Hosts and operators. */
bool source_host_crashed;       /* its processes are gone */
bool destination_host_crashed;
bool source_host_gone;          /* permanently */
bool destination_host_gone;
mtype source_decision = none;
mtype destination_decision = none;

/* For the properties only. */
bool decided;                   /* the source's journal has Committed */
bool overruled;                 /* an operator let the source's copy run nevertheless */
bool taken_back;                /* or the destination had reported that its copy is lost */
bool killed_committed;          /* the destination's copy, after Committed and before it ran */
bool operator_discarded;
bool ran_there;
bool killed_suspended;          /* the source's copy, while it was suspended */

#define source_final       (source_journal == confirmed || source_journal == undone || \
                            source_journal == resumed)
#define destination_final  (destination_journal == running || destination_journal == gone)
/* Its copy may be the last one. */
#define asks_vote          (source_up && source_host_crashed && source_journal == awaiting)
#define has_given_up       (destination_journal == aborted || destination_journal == gone || \
                            destination_host_gone || \
                            (destination_journal == none && !network[PREFLIGHT_REQUEST]))
#define source_at_work     (source_up && source_worker)
#define destination_at_work (destination_up && destination_worker)

/* An agent that compares the peer's name with the one in the journal trusts no other. */
#ifdef MUTATE_ANY_PEER
#define believes_strangers true
#else
#define believes_strangers false
#endif

/* A reader that acts on a record writes it to the disk again first. */
#ifdef MUTATE_BELIEVE_MEMORY
#define rewrites false
#else
#define rewrites true
#endif

inline send(m) { network[m] = true }

/* As long as there are faults, a received message may be received again. */
inline take(m) {
  if
  :: network[m] = false
  :: !faults_over -> skip
  fi
}

inline source_advance(event, to, record) {
  printf("T source %e %e %e %e\n", source_state, event, to, record);
  source_journal = to;
  source_state = to
}

inline destination_advance(event, to, record) {
  printf("T destination %e %e %e %e\n", destination_state, event, to, record);
  destination_journal = to;
  destination_state = to
}

/* The journal's content is on the disk from now on. */
inline read_source_journal() {
  source_unsynced = source_unsynced && !rewrites;
  decided = decided || source_journal == committed
}

inline end_source_agent() {
  source_up = false;
  source_worker = false;
  source_state = none;
  source_step = 0;
  source_refused = false;
  source_trouble = false;
  connection = false
}

inline end_destination_agent() {
  destination_up = false;
  destination_worker = false;
  destination_state = none;
  destination_step = 0;
  owes_reply = false;
  holds_copy = false;
  destination_trouble = false;
  connection = false;
  if
  :: destination_copy == bound -> destination_copy = destroyed
  :: else
  fi
}

inline crash_source_host() {
  end_source_agent();
  source_host_crashed = true;
#ifdef MUTATE_NO_SYNC
  if
  :: source_journal == committed -> source_journal = awaiting
  :: else
  fi;
#endif
  if
  :: source_unsynced ->
       printf("L source\n");
       source_journal = awaiting
  :: else
  fi;
  source_unsynced = false;
  vram = false;
  vram_copy = false;
  source_copy = destroyed
}

inline crash_destination_host() {
  end_destination_agent();
  destination_host_crashed = true;
  if
  :: destination_unsynced ->
       printf("L destination\n");
       destination_journal = restored
  :: else
  fi;
  destination_unsynced = false;
  destination_copy = destroyed
}

inline run_source_copy() {
  assert(vram);
  source_frozen = false;
  source_copy = runs
}

inline stop_source_copy() {
#ifndef MUTATE_NO_FREEZER_HERE
  source_frozen = true;
#endif
  source_copy = standing
}

inline run_destination_copy() {
  assert(destination_copy == standing);
  destination_frozen = false;
  holds_copy = false;
  destination_copy = runs;
  ran_there = true
}

/* It is lost before it ran: after Committed only its writer can know that. */
inline lose_destination_copy() {
  destination_advance(copy_lost, aborted, Aborted);
  copy_lost_noted = true;
  holds_copy = false;
  owes_reply = false
}

inline commit_destination() {
  destination_advance(told_commit, committed, Committed);
  holds_copy = true
}

/* The source's worker and its recovery. source_step of the worker: */
#define CONTACTED    1
#define KEEPER       2
#define DETACHING    3
#define STOPPED      4
#define ASKED        5  /* RestoreRequest is sent */
#define VOTED        6  /* RestoreReply has come */
#define CONFIRMED    7  /* CommitReply has come (recovery too) */
#define GIVING_UP    8  /* rolls back although the journal could not take Aborted */
#define UNCONFIRMED  9  /* CommitRequest was sent once (a mutation) */
#define COPIED      10  /* of a suspend: all is in host memory, and a keeper holds it */
#define RELEASED    11  /* VRAM (recovery too) */
#define LOADED      12  /* VRAM is restored, and a keeper holds it */

active proctype source() {
  do
  /* The steps before the commit. */
  :: atomic { source_at_work && source_state == working && source_step == 0 ->
#ifndef MUTATE_NO_PEER_RECORD
       peer_noted = true;
#endif
       send(PREFLIGHT_REQUEST);
       connection = !destination_host_gone;
       source_step = CONTACTED }
  :: atomic { source_at_work && source_state == working && source_step == CONTACTED &&
              source_copy == runs && !detaching_noted ->
       was_suspended = true;
       detaching_noted = true;  /* by the suspension's journal */
       stop_source_copy();
       vram = false;
       vram_copy = true;
       source_step = STOPPED }
  :: atomic { source_at_work && source_state == working && source_step == 0 ->
       suspends = true;
       source_step = CONTACTED }
  :: atomic { source_at_work && source_state == working && source_step == CONTACTED ->
       source_advance(keeper_started, working, KeeperStarted);
       source_step = KEEPER }
  :: atomic { source_at_work && source_state == working && source_step == KEEPER ->
       source_advance(detaching, working, Detaching);
       detaching_noted = true;
       source_step = DETACHING }
  :: atomic { source_at_work && source_state == working && source_step == DETACHING ->
       if
       :: source_copy == runs -> stop_source_copy()
       :: else
       fi;
       source_step = STOPPED }
  :: atomic { source_at_work && source_state == working && source_step == STOPPED && suspends ->
       vram_copy = true;
       source_step = COPIED }
  :: atomic { source_at_work && source_state == working && source_step == COPIED ->
       source_advance(suspended, suspended, Suspended);
       source_trouble = false;
       source_step = 0 }
  :: atomic { source_at_work && source_state == working && source_step == STOPPED && !suspends ->
       source_advance(ask_restore, awaiting, Awaiting) }
  :: atomic { source_at_work && source_state == awaiting && source_step == STOPPED ->
       send(RESTORE_REQUEST);
       source_step = ASKED }
  :: atomic { source_at_work && source_state == awaiting && source_step == ASKED &&
              network[RESTORE_REPLY] ->
       take(RESTORE_REPLY);
       source_step = VOTED }
  :: atomic { source_at_work && source_state == awaiting && source_step == VOTED ->
       source_advance(vote_received, committed, Committed);
       source_trouble = false;
       decided = true }

  /* Failures before the commit, and a failing journal in addition. */
  :: atomic { source_at_work && (source_state == working || source_state == awaiting) &&
              source_step != GIVING_UP && (source_trouble || (source_step > 0 && !connection && !suspends)) ->
       source_advance(failed, aborted, Aborted);
       source_trouble = false }
  :: atomic { source_at_work && (source_state == working || source_state == awaiting) &&
              source_step != GIVING_UP && source_trouble && !faults_over ->
       source_trouble = false;
       source_step = GIVING_UP }
  :: atomic { source_up && source_step == GIVING_UP && source_copy == standing && !was_suspended ->
       run_source_copy() }
  :: atomic { source_up && source_step == GIVING_UP && (source_copy != standing || was_suspended) ->
       send(ABORT_REQUEST);
       end_source_agent() }

  /* The worker ended, the agent or the host was restarted. */
  :: atomic { !source_up && !source_host_gone ->
       source_up = true;
       read_source_journal();
       source_state = source_journal;
       printf("R source %e\n", source_state) }
  :: atomic { source_up && !source_worker && (source_state == working || source_state == awaiting) &&
#ifndef MUTATE_ASK_NO_VOTE
              (!asks_vote || has_given_up) &&
#endif
              true ->
       assert(!asks_vote || destination_host_gone || destination_journal != restored);  /* it would be the last copy */
       source_advance(restarted, aborted, Aborted) }
  :: atomic { source_up && !source_worker && source_state == awaiting && network[VOTE_TOLD] ->
       take(VOTE_TOLD);
       source_advance(vote_received, committed, Committed);
       decided = true }

  /* Suspended: VRAM is released, and allocated again. */
  :: atomic { source_up && source_state == suspended && source_step == 0 ->
       vram = false;
       source_step = RELEASED }
  :: atomic { source_up && source_state == suspended && source_step == RELEASED &&
              source_copy == standing ->
       assert(vram_copy);
       source_advance(keeper_started, suspended, KeeperStarted);
       vram = true;
       source_step = LOADED }
  :: atomic { source_up && source_state == suspended && source_step == LOADED ->
       source_advance(resuming, resuming, Resuming) }
  :: atomic { source_up && source_state == suspended && source_step == LOADED && !faults_over ->
       source_step = 0 }
  :: atomic { source_up && source_state == suspended && source_copy == destroyed ->
       vram = false;
       vram_copy = false;
       source_advance(ended, undone, Finished) }
  :: atomic { source_up && source_state == resuming && source_copy == standing ->
       run_source_copy() }
  :: atomic { source_up && source_state == resuming && source_copy != standing ->
       vram_copy = false;
       source_advance(resumed, resumed, Finished) }

  /* The roll-back finds the copy as it is. */
  :: atomic { source_up && source_state == aborted && source_copy == standing && !was_suspended ->
       run_source_copy() }
  :: atomic { source_at_work && source_state == aborted && connection ->
       send(ABORT_REQUEST);
       source_worker = false;
       connection = false }
  :: atomic { source_up && source_state == aborted && (source_copy != standing || was_suspended) ->
       vram_copy = vram_copy && was_suspended;
       source_advance(rolled_back, undone, Finished) }
  :: atomic { source_at_work && source_state == undone && connection ->
       send(ABORT_REQUEST);
       source_worker = false;
       connection = false }

  /* The commit is sent until it is confirmed. */
  :: atomic { source_up && source_state == committed && source_step != CONFIRMED &&
#ifdef MUTATE_COMMIT_ONCE
              source_step != UNCONFIRMED && source_worker &&
#endif
              source_decision == none && !network[COMMIT_REQUEST] && !network[COMMIT_REPLY] &&
              !network[COMMIT_REFUSED] && !network[COPY_LOST] ->
#ifdef MUTATE_COMMIT_ONCE
       source_step = UNCONFIRMED;
#endif
       send(COMMIT_REQUEST) }
  :: atomic { source_up && source_state == committed && peer_noted && network[COMMIT_REPLY] ->
       take(COMMIT_REPLY);
       source_step = CONFIRMED }
  :: atomic { source_up && source_state == committed && peer_noted && network[COMMIT_REFUSED] ->
       take(COMMIT_REFUSED);
       source_refused = true }
#ifndef MUTATE_NO_TAKE_BACK
  :: atomic { source_up && source_state == committed && source_step != CONFIRMED && peer_noted &&
              network[COPY_LOST] ->
       take(COPY_LOST);
       assert(!ran_there);
       source_advance(copy_lost, aborted, Aborted);
       taken_back = true;
       source_decision = none }
#endif
  :: atomic { source_up && source_state == committed && source_step != CONFIRMED && !faults_over ->
       source_step = (believes_strangers -> CONFIRMED : source_step) }
  :: atomic { source_up && source_state == committed && source_step == CONFIRMED &&
              source_copy != destroyed ->
       assert(ran_there || killed_committed);
       source_copy = destroyed }
  :: atomic { source_up && source_state == committed && source_step == CONFIRMED &&
              source_copy == destroyed ->
       source_advance(commit_confirmed, confirmed, Finished) }

  /* The decision of an operator, which recovery applies. */
  :: atomic { source_at_work && source_state == committed && source_step != CONFIRMED &&
              (destination_host_gone || source_refused) ->
       source_worker = false;
       connection = false }
  :: atomic { source_up && !source_worker && source_state == committed &&
              source_step != CONFIRMED && source_decision == resolved_run_here ->
       source_advance(resolved_run_here, aborted, Resolved);
       overruled = true;
       source_decision = none }
  :: atomic { source_up && !source_worker && source_state == committed &&
              source_step != CONFIRMED && source_decision == resolved_discard_here ->
       source_advance(resolved_discard_here, discarded, Resolved);
       operator_discarded = true;
       source_decision = none }
  :: atomic { source_up && source_state == discarded && source_copy != destroyed ->
       source_copy = destroyed }
  :: atomic { source_up && source_state == discarded && source_copy == destroyed ->
       source_advance(cleared, confirmed, Finished) }

  :: atomic { source_up && source_final -> connection = false; break }
  :: atomic { source_host_gone -> break }

#ifdef MUTATE_RELEASE_BEFORE_RECORD
  :: atomic { source_at_work && source_state == working && source_step == COPIED ->
       vram = false }
#endif
#ifdef MUTATE_RUN_BEFORE_RECORD
  :: atomic { source_up && source_state == suspended && source_step == LOADED &&
              source_copy == standing ->
       run_source_copy() }
#endif
#ifdef MUTATE_ABORT_AFTER_COMMITTED
  :: atomic { source_at_work && source_state == committed && source_step != CONFIRMED ->
       source_advance(failed, aborted, Aborted) }
#endif
#ifdef MUTATE_COMMIT_BEFORE_RECORD
  :: atomic { source_at_work && source_state == awaiting && source_step == VOTED ->
       send(COMMIT_REQUEST) }
#endif
#ifdef MUTATE_ROLL_BACK_IN_QUESTION
  /* The append of Committed failed and could not be undone; it is there. */
  :: atomic { source_at_work && source_state == awaiting && source_step == VOTED && !faults_over ->
       source_journal = committed;
       decided = true;
       source_step = GIVING_UP }
#endif
#ifdef MUTATE_NO_LOCK
  /* A recovery that does not wait for the worker's end. */
  :: atomic { source_at_work && source_state == awaiting && source_copy == standing ->
       source_journal = aborted;
       run_source_copy() }
#endif
  od
}

/* The source's daemon, and the operator that resumes a job suspended before the migration. */
active proctype source_daemon() {
end_source_daemon:
  do
  :: atomic { was_suspended && source_copy == standing && !source_host_gone &&
#ifndef MUTATE_RESUME_WHILE_MOVED
              source_journal == undone &&
#endif
              true ->
       assert(vram_copy);
       vram = true;
       run_source_copy() }
  :: atomic { network[OUTCOME_REQUEST] && !source_host_gone ->
       take(OUTCOME_REQUEST);
       read_source_journal();
       if
       :: source_journal == committed || source_journal == discarded ||
          source_journal == confirmed ->
            printf("O source %e COMMITTED\n", source_journal);
            send(OUTCOME_COMMITTED)
       :: source_journal == aborted || source_journal == undone ->
            printf("O source %e ABORTED\n", source_journal);
            send(OUTCOME_ABORTED)
       :: source_journal == working || source_journal == awaiting ->
            printf("O source %e UNDECIDED\n", source_journal);
#ifdef MUTATE_PRESUME_ABORT
            send(OUTCOME_ABORTED)
#endif
       fi }
  od
}

/* The destination's worker and its recovery. destination_step of the worker: */
#define STANDS  1  /* the copy is restored and stopped */
#define REPLIED 2  /* RestoreReply is sent */

/* The recovery of a vote. */
#define in_doubt (destination_up && !destination_worker && destination_state == restored)

#ifdef MUTATE_NO_LOOK
#define found true
#define told  false
#else
#define found (destination_copy == standing)
#define told  holds_copy
#endif

active proctype destination() {
end_destination_idle:
  atomic { network[PREFLIGHT_REQUEST] && !destination_host_gone ->
    take(PREFLIGHT_REQUEST);
    destination_journal = building;
    destination_state = building;
    destination_worker = true };
  do
  /* Before the vote. */
  :: atomic { destination_at_work && destination_state == building && destination_step == 0 &&
              network[RESTORE_REQUEST] ->
       take(RESTORE_REQUEST);
       destination_copy = bound;
#ifndef MUTATE_NO_FREEZER_THERE
       destination_frozen = true;
#endif
       destination_step = STANDS }
  :: atomic { destination_at_work && destination_state == building && destination_step == STANDS &&
              was_suspended && !destination_keeps ->
       destination_advance(keeper_started, building, KeeperStarted);
       destination_keeps = true }
  :: atomic { destination_at_work && destination_state == building && destination_step == STANDS &&
#ifndef MUTATE_VOTE_WITHOUT_KEEPER
              (destination_keeps || !was_suspended) &&
#endif
              true ->
       destination_advance(restored, restored, Restored) }
  :: atomic { destination_at_work && destination_state == restored && destination_copy == bound ->
       destination_copy = standing }
  :: atomic { destination_at_work && destination_state == restored &&
              destination_copy == standing && destination_step == STANDS ->
       send(RESTORE_REPLY);
       destination_step = REPLIED }
  :: atomic { destination_at_work && destination_state == building &&
              (destination_trouble || !connection || network[ABORT_REQUEST]) ->
       destination_trouble = false;
       destination_advance(failed, aborted, Aborted) }

  /* The agent or the host was restarted. */
  :: atomic { !destination_up && !destination_host_gone ->
       destination_up = true;
       destination_unsynced = destination_unsynced && !rewrites;
       destination_state = destination_journal;
       printf("R destination %e\n", destination_state) }
  :: atomic { destination_up && !destination_worker && destination_state == building ->
       destination_advance(restarted, aborted, Aborted) }
  :: atomic { destination_up && destination_host_crashed && destination_state == committed ->
       destination_advance(host_lost, aborted, Aborted) }

  /* The copy is checked before it is committed, and once more before its release. */
#ifndef MUTATE_NO_LOOK
  :: atomic { destination_up && destination_state == restored && destination_copy == destroyed ->
       lose_destination_copy() }
  :: atomic { destination_up && destination_state == committed && destination_copy == destroyed &&
              holds_copy ->
       lose_destination_copy() }
#endif

  /* Messages sent before the source's host went down have arrived, or are lost, when it is up again. */
  :: atomic { destination_up && destination_state == restored && asks_vote &&
              !network[ABORT_REQUEST] && !network[VOTE_TOLD] ->
       send(VOTE_TOLD) }

  /* The outcome is sent, or recovery asks for it. */
  :: atomic { destination_at_work && destination_state == restored &&
              destination_copy != bound && (!connection || destination_trouble) ->
       destination_worker = false;
       destination_trouble = false;
       connection = false }
  :: atomic { ((destination_at_work && destination_state == restored) || in_doubt) && found &&
              network[COMMIT_REQUEST] ->
       take(COMMIT_REQUEST);
       commit_destination();
       owes_reply = true }
  :: atomic { ((destination_at_work && destination_state == restored) || in_doubt) &&
              network[ABORT_REQUEST] ->
       take(ABORT_REQUEST);
       destination_advance(told_abort, aborted, Aborted) }
  :: atomic { in_doubt && !asks_vote && destination_decision == none && !network[OUTCOME_REQUEST] &&
              !network[OUTCOME_COMMITTED] && !network[OUTCOME_ABORTED] ->
       send(OUTCOME_REQUEST) }
  :: atomic { in_doubt && found && network[OUTCOME_COMMITTED] ->
       take(OUTCOME_COMMITTED);
       commit_destination() }
  :: atomic { in_doubt && network[OUTCOME_ABORTED] ->
       take(OUTCOME_ABORTED);
       destination_advance(told_abort, aborted, Aborted) }
  :: atomic { in_doubt && found && destination_decision == resolved_run_here ->
       destination_advance(resolved_run_here, committed, Resolved);
       holds_copy = true;
       destination_decision = none }
  :: atomic { in_doubt && destination_decision == resolved_discard_here ->
       destination_advance(resolved_discard_here, aborted, Resolved);
       operator_discarded = true;
       destination_decision = none }

  /* After it. */
  :: atomic { destination_up && destination_state == committed && destination_copy == standing ->
       run_destination_copy() }
  :: atomic { destination_up && destination_state == committed && destination_copy == runs &&
              owes_reply ->
       owes_reply = false;
       send(COMMIT_REPLY) }
  /* A copy that has ended, and whose end may have come after it ran, has ended here. */
  :: atomic { destination_up && destination_state == committed && !destination_host_crashed &&
              (destination_copy == runs || (destination_copy == destroyed && !told)) ->
       destination_advance(resumed, running, Finished) }
  :: atomic { destination_up && destination_state == aborted &&
              (destination_copy == bound || destination_copy == standing) ->
       destination_copy = destroyed }
  :: atomic { destination_up && destination_state == aborted &&
              (destination_copy == absent || destination_copy == destroyed) ->
       destination_advance(cleared, gone, Finished) }
  :: atomic { destination_up && network[COMMIT_REQUEST] && destination_state == committed &&
              destination_copy == runs ->
       take(COMMIT_REQUEST);
       send(COMMIT_REPLY) }

  :: atomic { destination_up && destination_final -> connection = false; break }
  :: atomic { destination_host_gone -> break }

#ifdef MUTATE_RESUME_IN_DOUBT
  :: atomic { in_doubt && destination_copy == standing ->
       destination_advance(told_commit, committed, Committed) }
#endif
#ifdef MUTATE_ANY_PEER
  :: atomic { in_doubt && found && !faults_over -> commit_destination() }
#endif
#ifdef MUTATE_ABORT_IN_DOUBT
  :: atomic { in_doubt ->
       destination_advance(told_abort, aborted, Aborted) }
#endif
#ifdef MUTATE_RESUME_BEFORE_RECORD
  :: atomic { destination_up && destination_state == restored && network[COMMIT_REQUEST] &&
              destination_copy == standing ->
       run_destination_copy() }
#endif
#ifdef MUTATE_VOTE_BEFORE_RECORD
  :: atomic { destination_at_work && destination_state == building && destination_step == STANDS ->
       send(RESTORE_REPLY) }
#endif
  od;

  /* Its daemon answers for it, from the journal. */
end_destination_daemon:
  do
  :: atomic { network[COMMIT_REQUEST] && !destination_host_gone ->
       take(COMMIT_REQUEST);
       if
       :: destination_journal == running -> send(COMMIT_REPLY)
       :: destination_journal == gone && copy_lost_noted -> send(COPY_LOST)
       :: destination_journal == gone && !copy_lost_noted -> send(COMMIT_REFUSED)
       fi }
  od
}

/* Of the migration's own connection: it is unusable once one of its messages is lost. */
inline lose_with_connection(m) { network[m] = false; connection = false }

/* All faults, in any number, until they cease. A simulation has FAULTS of them, and
 * PAUSE idle steps before each, or it would hardly get anywhere; CALM: only outsiders and hosts. */
#ifdef FAULTS
byte faults_left = FAULTS;
byte pause = PAUSE;
#define strikes (pause == 0 && faults_left > 0)
#define ends    (faults_left == 0)
#else
#define strikes true
#define ends    true
#endif

active proctype faults() {
  do
  :: atomic { ends -> faults_over = true; break }
#ifdef FAULTS
  :: atomic { !ends && pause > 0 -> pause-- }
#endif
  :: atomic { strikes ->
#ifdef FAULTS
    faults_left--;
    pause = PAUSE;
#endif
    if
    :: skip
#ifndef CALM
    :: source_up && !source_final -> end_source_agent()
    :: destination_up && destination_journal != none && !destination_final ->
         end_destination_agent()
    :: source_at_work && (source_state == working || source_state == awaiting) ->
         source_trouble = true
    :: destination_at_work && (destination_state == building || destination_state == restored) ->
         destination_trouble = true
    :: connection -> connection = false
    :: network[PREFLIGHT_REQUEST] -> lose_with_connection(PREFLIGHT_REQUEST)
    :: network[RESTORE_REQUEST] -> lose_with_connection(RESTORE_REQUEST)
    :: network[RESTORE_REPLY] -> lose_with_connection(RESTORE_REPLY)
    :: network[ABORT_REQUEST] -> lose_with_connection(ABORT_REQUEST)
    :: network[COMMIT_REQUEST] -> network[COMMIT_REQUEST] = false
    :: network[COMMIT_REPLY] -> network[COMMIT_REPLY] = false
    :: network[COMMIT_REFUSED] -> network[COMMIT_REFUSED] = false
    :: network[COPY_LOST] -> network[COPY_LOST] = false
    :: network[OUTCOME_REQUEST] -> network[OUTCOME_REQUEST] = false
    :: network[OUTCOME_COMMITTED] -> network[OUTCOME_COMMITTED] = false
    :: network[OUTCOME_ABORTED] -> network[OUTCOME_ABORTED] = false
    :: network[VOTE_TOLD] -> network[VOTE_TOLD] = false
#endif
    :: source_copy == standing && source_journal == suspended ->
         killed_suspended = true;
         source_copy = destroyed
    :: source_copy == standing -> source_copy = (source_frozen -> standing : runs)
    :: destination_copy == standing || destination_copy == bound ->
         ran_there = ran_there || !destination_frozen;
         destination_copy = (destination_frozen -> destination_copy : runs)
    :: destination_copy == standing ->
         killed_committed = killed_committed || destination_journal == committed;
         destination_copy = destroyed
#ifdef HOSTS
    :: source_at_work && source_state == awaiting && source_step == VOTED ->
         source_advance(vote_received, committed, Committed);
         source_unsynced = true;
         end_source_agent()
    :: destination_up && destination_state == restored && found && network[COMMIT_REQUEST] ->
         destination_advance(told_commit, committed, Committed);
         destination_unsynced = true;
         end_destination_agent()
    :: (source_up || source_unsynced) && !source_final -> crash_source_host()
    :: (destination_up || destination_unsynced) && destination_journal != none &&
       !destination_final ->
         crash_destination_host()
#endif
#ifdef GONE
    :: !source_host_gone && !destination_host_gone && !source_final ->
         crash_source_host();
         source_host_gone = true
    :: !source_host_gone && !destination_host_gone ->
         crash_destination_host();
         destination_host_gone = true
#endif
    fi }
  od
}

#if defined(HOSTS) || defined(GONE)
/* Decides if no agent can: the other host is gone permanently, or its copy is. */
active proctype operator() {
  mtype decision;
end_operator:
  atomic { (source_journal == committed && (destination_host_gone || source_refused)) ||
           (destination_journal == restored && source_host_gone) ->
    if
    :: decision = resolved_run_here
    :: decision = resolved_discard_here
    fi;
    if
    :: source_journal == committed && !source_host_gone -> source_decision = decision
    :: else -> destination_decision = decision
    fi }
}
#endif

#define one_runs        ((source_copy == runs) != (destination_copy == runs))
#define source_done     (source_final || source_host_gone)
#define destination_done (destination_final || destination_journal == none || destination_host_gone)

/* Why no copy may be left: an operator decided so; the source's host took the process with it before
 * the decision, or when the destination had lost its copy; the destination's host did so after the process
 * had run there and the source had heard of it; or the copy was killed between the
 * destination's Committed and its first step, or while it was suspended. */
#define excused (operator_discarded ||                                              \
                 (source_host_crashed &&                                            \
                  (!decided || destination_host_crashed || copy_lost_noted)) ||     \
                 (destination_host_crashed && ran_there && source_copy == destroyed) || \
                 killed_committed || killed_suspended)

/* Never two running copies. */
#define is_one_copy (!(source_copy == runs && destination_copy == runs))
ltl one_copy { [] is_one_copy }

/* Once the source's journal has Committed, its copy never runs again, unless an operator decides so, or
 * the destination that its own has never run. */
#define is_final (!decided || source_copy != runs || overruled || taken_back)
ltl committed_is_final { [] is_final }

/* A copy that runs at the destination is in its journal, and one that was taken apart at the source
 * in the source's: recovery knows of it. */
#define is_told ((destination_copy != runs ||                                                \
                  destination_journal == committed || destination_journal == running) &&      \
                 (source_copy != standing || detaching_noted) &&                              \
                 (source_journal != awaiting || peer_noted))
ltl journals_tell { [] is_told }

/* The VRAM of a stopped copy exists, or its content is in host memory; suspended, it does not run. */
#define is_kept ((source_copy != standing || vram || vram_copy) &&                              \
                 (destination_copy != standing || !was_suspended || destination_keeps) &&      \
                 (source_journal != suspended || source_copy != runs))
ltl vram_is_kept { [] is_kept }

/* All of these, in one search. */
ltl invariants { [] (is_one_copy && is_final && is_told && is_kept) }

/* When faults are over, both sides come to their end and one copy runs. */
ltl settles { [] (faults_over -> <> (source_done && destination_done && (one_runs || excused))) }
