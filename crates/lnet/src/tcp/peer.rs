//! One peer: its connections, its credits, and who waits for it.
//!
//! A peer's connections live and die together (guide 1.6): an error on one, or a hello with another incarnation, closes
//! all. Whoever has something to send while there is none makes this node dial; a peer that has dialled us is used over
//! what it has opened. A peer that dials a connection which this node still has must have lost its end of it.

use super::Shared;
use super::conn::{Conn, Room, Tx};
use super::diag::Diag;
use super::dial::{self, Failure};
use super::hello::{ConnType, wins_race};
use super::hosts::Guest;
use super::link::Link;
use super::silence::Silence;
use super::{reader, writer};
use crate::counters::{Counters, Counts};
use crate::credits::Credits;
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
use wire::frame::{FRAME_HEAD, LnetMsg};

/// Messages from here on, their head included, are large: they go over the bulk connection.
const MIN_BULK: usize = 1 << 10;
/// For so long our own dialling can win a race; then the peer is perhaps one that can reach us but not we it. A connection
/// that is younger may be the one that won.
const RACE_MAX: Duration = Duration::from_secs(1);
/// Longest payload that its sender writes itself.
const AT_ONCE_MAX: usize = 16 << 10;
/// ACKs and REPLYs on their way to one peer; then its messages are not read any further.
const ANSWERS_MAX: usize = 8192;

/// One peer.
#[derive(Debug)]
pub(crate) struct Peer {
    pub(crate) nid: Nid,
    /// The interface by which this node connects to it.
    pub(crate) ni: Arc<Ni>,
    pub(crate) cpt: CptId,
    pub(super) shared: Arc<Shared>,
    pub(crate) credits: Arc<Credits>,
    /// Of a router's buffers, those that this peer's messages may hold.
    pub(crate) router_credits: Arc<Credits>,
    counters: Counters,
    /// How many messages there were when [`Peer::close_if_unused`] last looked; 0 for a peer that has connected since.
    seen: AtomicU64,
    answers: Arc<Semaphore>,
    /// The last message came by itself, so that what is sent now has none to leave with.
    quiet: AtomicBool,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    conns: Vec<Arc<Conn>>,
    /// `conns` as others see them; its incarnation is the peer's boot that they belong to.
    link: Link,
    silence: Silence,
    /// Since when this node is dialling.
    dialing: Option<Instant>,
    /// How often dialling has ended, and how it last failed.
    rounds: u64,
    failure: Option<LnetError>,
    closed: bool,
}

/// What to say to a peer that dials us.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    Accept,
    Retry,
}

impl Peer {
    pub(super) fn new(nid: Nid, ni: Arc<Ni>, shared: Arc<Shared>) -> Arc<Peer> {
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
            seen: AtomicU64::new(0),
            ni,
            answers: Arc::new(Semaphore::new(ANSWERS_MAX)),
            quiet: AtomicBool::new(true),
            shared,
            state: Mutex::default(),
            changed: Notify::new(),
        })
    }

    /// Sends a message of our own: resolves when it has left. What did not leave because the connection broke is sent
    /// again on a fresh one.
    pub(super) async fn send(self: &Arc<Self>, mut msg: Msg) -> Result<(), LnetError> {
        let size = FRAME_HEAD + msg.payload.len();
        let mut attempt = 0;
        loop {
            // First the connection, then the credits: a peer that cannot be reached holds none.
            self.connection(size >= MIN_BULK).await?;
            let own = self.credits.take().await;
            let partition = self.ni.credits(self.cpt).take().await;
            let conn = self.connection(size >= MIN_BULK).await?;
            let (done, sent) = oneshot::channel();
            let (op, len) = (msg.op, msg.payload.len());
            let tx = Tx {
                msg,
                _room: Room::Credits(own, partition),
                done: Some(done),
            };
            self.push(&conn, tx);
            match sent.await {
                Ok(Ok(())) => {
                    self.count_sent(&op, len);
                    return Ok(());
                }
                Ok(Err(unsent)) if attempt < self.shared.cfg.retry_count => msg = unsent.msg,
                Ok(Err(unsent)) => return Err(unsent.why),
                Err(_) => return Err(LnetError::ShutDown),
            }
            attempt += 1;
        }
    }

    /// Sends an ACK or REPLY, over what connections there are: without any the peer does not wait for it any more.
    pub(super) async fn respond(&self, answer: Msg) {
        // Never closed.
        let Ok(permit) = self.answers.clone().acquire_owned().await else {
            return;
        };
        let large = FRAME_HEAD + answer.payload.len() >= MIN_BULK;
        let conn = choose(&self.state.lock().conns, large);
        if let Some(conn) = conn {
            self.count_sent(&answer.op, answer.payload.len());
            let tx = Tx {
                msg: answer,
                _room: Room::Answer(permit),
                done: None,
            };
            self.push(&conn, tx);
        }
    }

    /// Hands a message to a connection. One that is small and by itself is written right here; several at once leave in one
    /// write, and a large one while its sender goes on.
    fn push(&self, conn: &Conn, tx: Tx) {
        let small = tx.msg.payload.len() <= AT_ONCE_MAX;
        if small && self.quiet.load(Ordering::Relaxed) && self.shared.cpts.is_here(conn.cpt) {
            writer::send(conn, tx);
        } else {
            conn.push(tx);
        }
    }

    /// A message came, alone or with others.
    pub(super) fn came(&self, alone: bool) {
        if self.quiet.load(Ordering::Relaxed) != alone {
            self.quiet.store(alone, Ordering::Relaxed);
        }
    }

    fn count_sent(&self, op: &LnetMsg, len: usize) {
        self.counters.sent(op, len);
        self.ni.counters(self.cpt).sent(op, len);
    }

    /// A message came on `conn`.
    pub(super) fn count_received(&self, conn: &Conn, op: &LnetMsg, len: usize) {
        self.counters.received(op, len);
        conn.ni.counters(conn.cpt).received(op, len);
    }

    /// Nobody took it.
    pub(super) fn count_dropped(&self, conn: &Conn, op: &LnetMsg, len: usize) {
        self.counters.dropped(op, len);
        conn.ni.counters(conn.cpt).dropped(op, len);
    }

    /// What was counted.
    pub(crate) fn counts(&self) -> Counts {
        self.counters.now()
    }

    /// How many connections there are.
    pub(crate) fn connections(&self) -> usize {
        self.state.lock().conns.len()
    }

    /// A connection that suits the message; dials if there is none.
    async fn connection(self: &Arc<Self>, large: bool) -> Result<Arc<Conn>, LnetError> {
        let mut joined = None;
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
                // The attempt that we waited for has ended without a connection.
                if joined.is_some_and(|round| round < state.rounds) {
                    let lost = || LnetError::PeerLost {
                        peer: self.nid,
                        why: "closed at once".into(),
                    };
                    return Err(state.failure.clone().unwrap_or_else(lost));
                }
                joined.get_or_insert(state.rounds);
                if state.dialing.is_none() {
                    state.dialing = Some(Instant::now());
                    let peer = self.clone();
                    let dial = async move { dial::dial(&peer).await };
                    self.shared.tasks.spawn(self.shared.cpts.get(self.cpt), dial);
                }
            }
            changed.await;
        }
    }

    /// Whether there are so many connections of that type.
    pub(super) fn has(&self, ctype: ConnType, n: usize) -> bool {
        self.state
            .lock()
            .conns
            .iter()
            .filter(|c| c.ctype == ctype)
            .count()
            >= n
    }

    /// The connections as one.
    pub(super) fn link(&self) -> Link {
        self.state.lock().link
    }

    /// Closes the connections if the peer's host is gone. Whether there are any to be looked at again.
    pub(super) fn look(&self, now: Instant, diag: &mut Diag) -> bool {
        let heard = self.counters.now().received.iter().sum();
        let unproven: Vec<Arc<Conn>> = {
            let mut state = self.state.lock();
            let unproven = |c: &&Arc<Conn>| c.is_unproven();
            let any = state.conns.iter().any(|c| unproven(&c));
            if !state.silence.look(now, heard, any) {
                return !state.conns.is_empty();
            }
            state.conns.iter().filter(unproven).cloned().collect()
        };
        let found: Vec<_> = unproven.iter().filter_map(|conn| conn.diagnose(diag)).collect();
        let since = self.state.lock().silence.judge(now, &found);
        // The peer may have connected anew meanwhile.
        let Some(since) = since.filter(|_| unproven.iter().any(|conn| self.uses(conn))) else {
            return true;
        };
        let why = format!(
            "its host has not acknowledged anything for {} s",
            (now - since).as_secs()
        );
        self.close_since(since, &LnetError::PeerLost { peer: self.nid, why });
        false
    }

    /// Waits until something about the connections changes.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Dialling has ended.
    pub(super) fn dialed(&self, result: Result<(), Failure>) {
        {
            let mut state = self.state.lock();
            state.dialing = None;
            state.rounds += 1;
            let failure = result.err();
            // With a connection that the peer has opened meanwhile it is reached all the same.
            if !state.link.up && failure.as_ref().is_some_and(|f| f.unreachable) {
                state.link.unreachable_at = Some(Instant::now());
            }
            state.failure = failure.map(|Failure { why, .. }| LnetError::Connect { peer: self.nid, why });
        }
        self.changed.notify_waiters();
    }

    /// Judges a peer's wish for a connection, which is of type `ctype` as this node, `own`, sees it.
    pub(super) fn admit(self: &Arc<Self>, own: Nid, ctype: ConnType, incarnation: u64) -> Admission {
        self.restarted(incarnation);
        let state = self.state.lock();
        let racing =
            state.dialing.is_some_and(|since| since.elapsed() < RACE_MAX) && wins_race(own, self.nid);
        if state.closed || racing {
            return Admission::Retry;
        }
        let same = || state.conns.iter().filter(|c| c.ctype == ctype && c.ni.nid == own);
        if same().count() < ctype.limit() {
            return Admission::Accept;
        }
        // Of its only connection the peer has lost its end. Of several it may merely want more than we take.
        if ctype.limit() > 1 || same().any(|c| c.since.elapsed() < RACE_MAX) {
            return Admission::Retry;
        }
        drop(state);
        self.close(&LnetError::PeerLost {
            peer: self.nid,
            why: "it has connected anew".into(),
        });
        Admission::Accept
    }

    /// Closes the connections of an earlier boot of the peer.
    fn restarted(self: &Arc<Self>, incarnation: u64) {
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

    /// Begins to use a connection on which both hellos have been said.
    pub(super) fn add(
        self: &Arc<Self>,
        stream: TcpStream,
        local: Arc<Ni>,
        ctype: ConnType,
        incarnation: u64,
        guest: Option<Guest>,
    ) {
        self.restarted(incarnation);
        let cpt = local.cpt_of(self.nid);
        let (incoming, outgoing) = stream.into_split();
        let conn = Arc::new(Conn::new(outgoing, local, cpt, ctype, guest));
        let first = {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.conns.push(conn.clone());
            state.link.incarnation = incarnation;
            self.seen.store(0, Ordering::Relaxed);
            let first = state.conns.len() == 1;
            if first {
                state.link.connected();
                state.silence = Silence::default();
            }
            first
        };
        if first {
            self.shared.watch(self.cpt);
            // An error means that nobody listens.
            let _ = self.shared.events.send(PeerEvent::Up(self.nid));
            let nets = self.shared.core.nets.now();
            let by_it = nets.routes.iter().filter(|r| r.spec.gateway == self.nid);
            by_it.for_each(|r| r.gateway.heard());
        }
        tracing::debug!(peer = %self.nid, ?ctype, "connected");
        let cpt = self.shared.cpts.get(cpt);
        let (peer, reading) = (self.clone(), conn.clone());
        self.shared.tasks.spawn(cpt, async move {
            let why = reader::run(&reading, incoming, &peer).await;
            peer.lost(&reading, &why);
        });
        let (peer, writing) = (self.clone(), conn);
        self.shared.tasks.spawn(cpt, async move {
            let result = writer::run(&writing, peer.nid, &peer.shared.cfg).await;
            writing.ended();
            if let Err(why) = result {
                peer.lost(&writing, &why);
            }
        });
        self.changed.notify_waiters();
    }

    /// A connection broke: if it is still in use, all go.
    fn lost(&self, conn: &Arc<Conn>, why: &LnetError) {
        if self.uses(conn) {
            self.close(why);
        }
    }

    fn uses(&self, conn: &Arc<Conn>) -> bool {
        self.state.lock().conns.iter().any(|c| Arc::ptr_eq(c, conn))
    }

    /// Closes all connections. What did not leave goes back to its senders, what waits for the peer's answers fails.
    pub(super) fn close(&self, why: &LnetError) {
        self.close_since(Instant::now(), why);
    }

    /// The same for a peer that has been gone since then.
    fn close_since(&self, since: Instant, why: &LnetError) {
        let conns = {
            let mut state = self.state.lock();
            if state.conns.is_empty() {
                return;
            }
            state.link.lost(since);
            std::mem::take(&mut state.conns)
        };
        tracing::debug!(peer = %self.nid, "disconnected: {why}");
        conns.iter().for_each(|conn| conn.close(why));
        self.shared.core.peer_lost(self.nid, why);
        // An error means that nobody listens.
        let _ = self.shared.events.send(PeerEvent::Down(self.nid));
        self.changed.notify_waiters();
    }

    /// Disconnects a peer with which no message was exchanged since this was last called.
    pub(super) fn close_if_unused(&self) {
        let messages = self.counters.now().messages() + 1;
        if self.seen.swap(messages, Ordering::Relaxed) == messages {
            self.close(&LnetError::PeerLost {
                peer: self.nid,
                why: "it has no session and sends nothing".into(),
            });
        }
    }

    /// Closes all connections for good: whoever still has this peer learns that it is not to be used.
    pub(super) fn end(&self, why: &LnetError) {
        {
            let mut state = self.state.lock();
            state.closed = true;
            state.failure = Some(why.clone());
        }
        self.close(why);
        self.changed.notify_waiters();
    }

    /// Lets what is queued leave; nothing new is taken. Gives back the connections, which end by themselves.
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

/// The connection that suits a message best, of several the one with the shortest queue.
fn choose(conns: &[Arc<Conn>], large: bool) -> Option<Arc<Conn>> {
    let suits = conns
        .iter()
        .filter_map(|conn| Some((conn.ctype.suits(large)?, conn)));
    suits
        .min_by_key(|(rank, conn)| (*rank, conn.queued()))
        .map(|(_, conn)| conn.clone())
}
