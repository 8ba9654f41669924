//! One peer: its connections, its credits, and the tasks that wait for it.
//!
//! All connections of a peer are closed together (docs/protocol.md, "LNet"): after an error of one,
//! after a hello with another incarnation, or when the peer opens a second control connection,
//! because it must have lost its end of the first. A sender without a connection makes this node
//! dial. Senders also use the connections that the peer opened.

use super::SharedState;
use super::conn::{Conn, Reservation, Tx};
use super::diag::Diag;
use super::dial::{self, DialFailure};
use super::hello::{ConnType, refuses_peers_connection};
use super::hosts::HostSlot;
use super::liveness::Liveness;
use super::{reader, writer};
use crate::counters::{Counters, Counts};
use crate::credits::Credits;
use crate::link::Link;
use crate::message::Msg;
use crate::ni::{Ni, Tunables};
use crate::{LnetError, PeerEvent};
use cpt::CptId;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;
use wire::Nid;
use wire::frame::{FRAME_HEAD, LnetOp};

/// Messages of at least this many bytes, including their header, are large and prefer the bulk
/// connection.
const LARGE_MIN: usize = 1 << 10;
/// Time for which a dial attempt of this node takes precedence over a connection that the peer
/// opens. After this time, this node accepts the peer's connection, because the peer may be
/// unreachable from this node. An existing connection that is younger may have won such a race, so
/// a second one does not prove that the peer has lost the first.
const RACE_MAX: Duration = Duration::from_secs(1);
/// Maximum length in bytes of payloads that the sender writes itself.
const DIRECT_WRITE_MAX: usize = 16 << 10;
/// Maximum number of unsent ACKs and REPLYs to one peer. At the limit, this node stops reading the
/// peer's messages.
const ANSWERS_MAX: usize = 8192;

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) nid: Nid,
    /// The interface through which this node connects to the peer.
    pub(crate) ni: Arc<Ni>,
    pub(crate) cpt: CptId,
    pub(super) shared: Arc<SharedState>,
    pub(crate) credits: Arc<Credits>,
    /// The router buffers that this peer's messages may hold.
    pub(crate) router_credits: Arc<Credits>,
    counters: Counters,
    /// One more than the number of messages at the last [`Peer::close_if_unused`]; 0 if a
    /// connection was added since.
    messages_at_check: AtomicU64,
    /// Permits for [`ANSWERS_MAX`] unsent answers.
    answer_permits: Arc<Semaphore>,
    /// Whether the last message arrived alone. If so, messages to the peer are likely to be alone
    /// too, and need not wait to share a write.
    last_arrived_alone: AtomicBool,
    state: Mutex<State>,
    /// Notified after each change of the connections and each end of a dial attempt.
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    conns: Vec<Arc<Conn>>,
    /// The state of `conns` for the layers above, with the incarnation from their hellos.
    link: Link,
    liveness: Liveness,
    /// When this node began to dial; `None` while it does not dial.
    dialing_since: Option<Instant>,
    /// Number of dial attempts that have ended, with or without success.
    dials_finished: u64,
    /// The error of the last dial attempt, or the reason of `closed`.
    failure: Option<LnetError>,
    /// Whether this node refuses new messages to the peer and new connections from it.
    closed: bool,
}

/// The answer to a peer that connects.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Accept,
    Retry,
}

impl Peer {
    pub(super) fn new(nid: Nid, ni: Arc<Ni>, shared: Arc<SharedState>) -> Arc<Peer> {
        let Tunables {
            peer_credits,
            peer_buffer_credits,
            ..
        } = ni.tunables;
        let buffers = if peer_buffer_credits > 0 {
            peer_buffer_credits
        } else {
            peer_credits
        };
        Arc::new(Peer {
            nid,
            cpt: ni.cpt_of(nid),
            credits: Credits::new(peer_credits),
            router_credits: Credits::new(buffers),
            counters: Counters::default(),
            messages_at_check: AtomicU64::new(0),
            ni,
            answer_permits: Arc::new(Semaphore::new(ANSWERS_MAX)),
            last_arrived_alone: AtomicBool::new(true),
            shared,
            state: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Sends a message; resolves when it has been sent. If the connection breaks before that, sends
    /// it again on a fresh one, up to `retry_count` times.
    pub(super) async fn send(self: &Arc<Self>, mut msg: Msg) -> Result<(), LnetError> {
        let size = FRAME_HEAD + msg.payload.len();
        let mut retries = 0;
        loop {
            // First the connection, then the credits: messages to an unreachable peer must not hold
            // credits.
            self.connection(size >= LARGE_MIN).await?;
            let peer_credit = self.credits.take().await;
            let partition_credit = self.ni.credits(self.cpt).take().await;
            let conn = self.connection(size >= LARGE_MIN).await?;
            let (done, sent) = oneshot::channel();
            let (op, len) = (msg.op, msg.payload.len());
            let tx = Tx {
                msg,
                _reservation: Reservation::Credits(peer_credit, partition_credit),
                done: Some(done),
            };
            self.push(&conn, tx);
            match sent.await {
                Ok(Ok(())) => {
                    self.count_sent(&op, len);
                    return Ok(());
                }
                Ok(Err(unsent)) if retries < self.shared.cfg.retry_count => msg = unsent.msg,
                Ok(Err(unsent)) => return Err(unsent.why),
                Err(_) => return Err(LnetError::ShutDown),
            }
            retries += 1;
        }
    }

    /// Queues an ACK or REPLY on an existing connection. Without a connection, drops the answer: a
    /// peer that has lost its connections no longer waits for answers.
    pub(super) async fn respond(&self, answer: Msg) {
        // Fails only if the semaphore is closed, which never happens.
        let Ok(permit) = self.answer_permits.clone().acquire_owned().await else {
            return;
        };
        let large = FRAME_HEAD + answer.payload.len() >= LARGE_MIN;
        let conn = choose(&self.state.lock().conns, large);
        if let Some(conn) = conn {
            self.count_sent(&answer.op, answer.payload.len());
            let tx = Tx {
                msg: answer,
                _reservation: Reservation::Answer(permit),
                done: None,
            };
            self.push(&conn, tx);
        }
    }

    /// Hands a message to a connection. A small message that is likely to be alone is written
    /// directly, if this task runs on the connection's partition. The writer task sends all others,
    /// several in one write.
    fn push(&self, conn: &Conn, tx: Tx) {
        let small = tx.msg.payload.len() <= DIRECT_WRITE_MAX;
        if small && self.last_arrived_alone.load(Ordering::Relaxed) && self.shared.cpts.may_run_here(conn.cpt)
        {
            writer::send_directly(conn, tx);
        } else {
            conn.push(tx);
        }
    }

    /// Records whether the last message was alone in its read.
    pub(super) fn note_arrival(&self, alone: bool) {
        if self.last_arrived_alone.load(Ordering::Relaxed) != alone {
            self.last_arrived_alone.store(alone, Ordering::Relaxed);
        }
    }

    fn count_sent(&self, op: &LnetOp, len: usize) {
        self.counters.count_sent(op, len);
        self.ni.counters(self.cpt).count_sent(op, len);
    }

    /// Counts a message received on `conn`.
    pub(super) fn count_received(&self, conn: &Conn, op: &LnetOp, len: usize) {
        self.counters.count_received(op, len);
        conn.ni.counters(conn.cpt).count_received(op, len);
    }

    /// Counts a received message that was dropped.
    pub(super) fn count_dropped(&self, conn: &Conn, op: &LnetOp, len: usize) {
        self.counters.count_dropped(op, len);
        conn.ni.counters(conn.cpt).count_dropped(op, len);
    }

    /// The counts of this peer.
    pub(crate) fn counts(&self) -> Counts {
        self.counters.snapshot()
    }

    /// Number of connections.
    pub(crate) fn connections(&self) -> usize {
        self.state.lock().conns.len()
    }

    /// A connection that suits the message; dials if there is none.
    async fn connection(self: &Arc<Self>, large: bool) -> Result<Arc<Conn>, LnetError> {
        // The value of `dials_finished` when this task began to wait for the end of an attempt.
        let mut dials_before = None;
        loop {
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock();
                if let Some(conn) = choose(&state.conns, large) {
                    return Ok(conn);
                }
                if state.closed {
                    return Err(state.failure.clone().unwrap_or(LnetError::ShutDown));
                }
                // The attempt that this task waited for has ended without a connection.
                if dials_before.is_some_and(|finished| finished < state.dials_finished) {
                    let closed_at_once = || LnetError::PeerLost {
                        peer: self.nid,
                        why: "the connection was closed at once".into(),
                    };
                    return Err(state.failure.clone().unwrap_or_else(closed_at_once));
                }
                dials_before.get_or_insert(state.dials_finished);
                if state.dialing_since.is_none() {
                    state.dialing_since = Some(Instant::now());
                    let peer = self.clone();
                    let dial = async move { dial::dial(&peer).await };
                    self.shared.tasks.spawn(self.shared.cpts.get(self.cpt), dial);
                }
            }
            changed.await;
        }
    }

    /// Whether there are at least `n` connections of this type.
    pub(super) fn has_connections(&self, ctype: ConnType, n: usize) -> bool {
        self.state
            .lock()
            .conns
            .iter()
            .filter(|c| c.ctype == ctype)
            .count()
            >= n
    }

    /// The state of the connections for the layers above.
    pub(super) fn link(&self) -> Link {
        self.state.lock().link
    }

    /// Closes the connections if the peer's host is dead. Returns whether any connections are left
    /// to monitor.
    pub(super) fn check_liveness(&self, now: Instant, diag: &mut Diag) -> bool {
        let received = self.counters.snapshot().received.iter().sum();
        let unacked: Vec<Arc<Conn>> = {
            let mut state = self.state.lock();
            let has_unacked = |c: &&Arc<Conn>| c.has_unacked();
            let any = state.conns.iter().any(|c| has_unacked(&c));
            if !state.liveness.should_diagnose(now, received, any) {
                return !state.conns.is_empty();
            }
            state.conns.iter().filter(has_unacked).cloned().collect()
        };
        let found: Vec<_> = unacked.iter().filter_map(|conn| conn.diagnose(diag)).collect();
        let since = self.state.lock().liveness.dead_since(now, &found);
        // The peer may have connected again in the meantime.
        let Some(since) = since.filter(|_| unacked.iter().any(|conn| self.uses(conn))) else {
            return true;
        };
        let why = format!(
            "its host has not acknowledged anything for {} s",
            (now - since).as_secs()
        );
        self.close_since(since, &LnetError::PeerLost { peer: self.nid, why });
        false
    }

    /// Waits for the next change of the connections or the end of a dial attempt.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Records the end of a dial attempt.
    pub(super) fn finish_dial(&self, result: Result<(), DialFailure>) {
        {
            let mut state = self.state.lock();
            state.dialing_since = None;
            state.dials_finished += 1;
            let failure = result.err();
            // If the peer has connected in the meantime, it is reachable.
            if !state.link.up && failure.as_ref().is_some_and(|f| f.unreachable) {
                state.link.unreachable_at = Some(Instant::now());
            }
            state.failure = failure.map(|DialFailure { why, .. }| LnetError::Connect { peer: self.nid, why });
        }
        self.changed.notify_waiters();
    }

    /// Decides on a connection that the peer opens to the NID `own`. `ctype` is the type from this
    /// node's point of view.
    pub(super) fn admit(self: &Arc<Self>, own: Nid, ctype: ConnType, incarnation: u64) -> Admission {
        self.close_if_restarted(incarnation);
        let state = self.state.lock();
        let racing = state
            .dialing_since
            .is_some_and(|since| since.elapsed() < RACE_MAX)
            && refuses_peers_connection(own, self.nid);
        if state.closed || racing {
            return Admission::Retry;
        }
        let existing = || state.conns.iter().filter(|c| c.ctype == ctype && c.ni.nid == own);
        if existing().count() < ctype.limit() {
            return Admission::Accept;
        }
        // If the type is limited to one connection, the peer has lost its end of the existing one.
        // If the type may have several, the peer may just request more than the limit.
        if ctype.limit() > 1 || existing().any(|c| c.opened_at.elapsed() < RACE_MAX) {
            return Admission::Retry;
        }
        drop(state);
        self.close(&LnetError::PeerLost {
            peer: self.nid,
            why: "it has connected again".into(),
        });
        Admission::Accept
    }

    /// Closes the connections if they belong to an earlier boot of the peer.
    fn close_if_restarted(self: &Arc<Self>, incarnation: u64) {
        let stale = {
            let state = self.state.lock();
            !state.conns.is_empty() && state.link.incarnation != incarnation
        };
        if stale {
            self.close(&LnetError::PeerLost {
                peer: self.nid,
                why: "it has restarted".into(),
            });
        }
    }

    /// Starts to use a connection after both hellos.
    pub(super) fn add_connection(
        self: &Arc<Self>,
        stream: TcpStream,
        ni: Arc<Ni>,
        ctype: ConnType,
        incarnation: u64,
        host_slot: Option<HostSlot>,
    ) {
        self.close_if_restarted(incarnation);
        let cpt = ni.cpt_of(self.nid);
        let (incoming, outgoing) = stream.into_split();
        let conn = Arc::new(Conn::new(outgoing, ni, cpt, ctype, host_slot));
        let is_first = {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.conns.push(conn.clone());
            state.link.incarnation = incarnation;
            self.messages_at_check.store(0, Ordering::Relaxed);
            let is_first = state.conns.len() == 1;
            if is_first {
                state.link.record_connect();
                state.liveness = Liveness::default();
            }
            is_first
        };
        if is_first {
            self.shared.start_liveness(self.cpt);
            // An error means that there are no subscribers.
            let _ = self.shared.events.send(PeerEvent::Up(self.nid));
            let nets = self.shared.core.nets.snapshot();
            let via_peer = nets.routes.iter().filter(|r| r.spec.gateway == self.nid);
            via_peer.for_each(|r| r.gateway.note_sign_of_life());
        }
        tracing::debug!(peer = %self.nid, ?ctype, "connected");
        let cpt = self.shared.cpts.get(cpt);
        let (peer, reading) = (self.clone(), conn.clone());
        self.shared.tasks.spawn(cpt, async move {
            let why = reader::run(&reading, incoming, &peer).await;
            peer.handle_broken_conn(&reading, &why);
        });
        let (peer, writing) = (self.clone(), conn);
        self.shared.tasks.spawn(cpt, async move {
            let result = writer::run(&writing, peer.nid, &peer.shared.cfg).await;
            writing.mark_writer_ended();
            if let Err(why) = result {
                peer.handle_broken_conn(&writing, &why);
            }
        });
        self.changed.notify_waiters();
    }

    /// Closes all connections after `conn` broke, unless `conn` is no longer in use.
    fn handle_broken_conn(&self, conn: &Arc<Conn>, why: &LnetError) {
        if self.uses(conn) {
            self.close(why);
        }
    }

    fn uses(&self, conn: &Arc<Conn>) -> bool {
        self.state.lock().conns.iter().any(|c| Arc::ptr_eq(c, conn))
    }

    /// Closes all connections. Unsent messages are returned to their senders, and operations that
    /// wait for the peer fail.
    pub(super) fn close(&self, why: &LnetError) {
        self.close_since(Instant::now(), why);
    }

    /// Closes all connections like [`Peer::close`]; `since` is the last sign of life of the peer's
    /// host.
    fn close_since(&self, since: Instant, why: &LnetError) {
        let conns = {
            let mut state = self.state.lock();
            if state.conns.is_empty() {
                return;
            }
            state.link.record_loss(since);
            std::mem::take(&mut state.conns)
        };
        tracing::debug!(peer = %self.nid, "disconnected: {why}");
        conns.iter().for_each(|conn| conn.close(why));
        self.shared.core.fail_pending(self.nid, why);
        // An error means that there are no subscribers.
        let _ = self.shared.events.send(PeerEvent::Down(self.nid));
        self.changed.notify_waiters();
    }

    /// Disconnects the peer if no message was exchanged with it since the previous call.
    pub(super) fn close_if_unused(&self) {
        let messages = self.counters.snapshot().messages() + 1;
        if self.messages_at_check.swap(messages, Ordering::Relaxed) == messages {
            self.close(&LnetError::PeerLost {
                peer: self.nid,
                why: "no upper layer uses it, and it exchanged no messages".into(),
            });
        }
    }

    /// Closes all connections for good. Tasks that still use this peer get an error.
    pub(super) fn end(&self, why: &LnetError) {
        {
            let mut state = self.state.lock();
            state.closed = true;
            state.failure = Some(why.clone());
        }
        self.close(why);
        self.changed.notify_waiters();
    }

    /// Refuses new messages and lets the queued ones be sent. Returns the connections, which end
    /// when their queues are empty.
    pub(super) fn finish(&self) -> Vec<Arc<Conn>> {
        let conns = {
            let mut state = self.state.lock();
            state.closed = true;
            state.failure = None;
            state.conns.clone()
        };
        conns.iter().for_each(|conn| conn.finish());
        self.changed.notify_waiters();
        conns
    }
}

/// The best connection for a message; among equals, the one with the shortest queue.
fn choose(conns: &[Arc<Conn>], large: bool) -> Option<Arc<Conn>> {
    let suitable = conns
        .iter()
        .filter_map(|conn| Some((conn.ctype.rank_for(large)?, conn)));
    suitable
        .min_by_key(|(rank, conn)| (*rank, conn.queued()))
        .map(|(_, conn)| conn.clone())
}
