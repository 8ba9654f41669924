//! One peer: its connections, its credits, and who waits for it.
//!
//! A peer's connections live and die together (guide 1.6): an error on one, or a hello with another incarnation, closes
//! all. Whoever has something to send while there is none makes this node dial; a peer that has dialled us is used over
//! what it has opened.

use super::Shared;
use super::conn::{Conn, Tx};
use super::dial;
use super::hello::{ConnType, wins_race};
use super::hosts::Guest;
use super::{reader, writer};
use crate::message::Msg;
use crate::{LnetError, PeerEvent};
use cpt::CptId;
use parking_lot::Mutex;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;
use wire::Nid;
use wire::frame::FRAME_HEAD;

/// Messages from here on, their head included, are large: they go over the bulk connection.
const MIN_BULK: usize = 1 << 10;
/// For so long our own dialling can win a race; then the peer is perhaps one that can reach us but not we it.
const RACE_MAX: Duration = Duration::from_secs(1);
/// ACKs and REPLYs on their way to one peer; then its messages are not read any further.
const ANSWERS_MAX: usize = 8192;

/// One peer.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) nid: Nid,
    pub(super) cpt: CptId,
    pub(super) shared: Arc<Shared>,
    credits: Arc<Semaphore>,
    answers: Arc<Semaphore>,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    conns: Vec<Arc<Conn>>,
    /// The peer's boot that `conns` belong to.
    incarnation: u64,
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
    /// It is not the one that it says it is.
    Refuse,
}

impl Peer {
    pub(super) fn new(nid: Nid, shared: Arc<Shared>) -> Arc<Peer> {
        Arc::new(Peer {
            nid,
            cpt: shared.cpts.of_nid(nid.0),
            credits: Arc::new(Semaphore::new(shared.cfg.peer_credits.max(1) as usize)),
            answers: Arc::new(Semaphore::new(ANSWERS_MAX)),
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
            let own = acquire(&self.credits).await?;
            let partition = acquire(&self.shared.credits[self.cpt.0]).await?;
            let conn = self.connection(size >= MIN_BULK).await?;
            let (done, sent) = oneshot::channel();
            conn.push(Tx {
                msg,
                _credits: (own, Some(partition)),
                done: Some(done),
            });
            match sent.await {
                Ok(Ok(())) => return Ok(()),
                Ok(Err(unsent)) if attempt < self.shared.cfg.retry_count => msg = unsent.msg,
                Ok(Err(unsent)) => return Err(unsent.why),
                Err(_) => return Err(LnetError::ShutDown),
            }
            attempt += 1;
        }
    }

    /// Sends an ACK or REPLY, over what connections there are: without any the peer does not wait for it any more.
    pub(super) async fn respond(&self, answer: Msg) {
        let Ok(permit) = acquire(&self.answers).await else {
            return;
        };
        let large = FRAME_HEAD + answer.payload.len() >= MIN_BULK;
        let conn = choose(&self.state.lock().conns, large);
        if let Some(conn) = conn {
            conn.push(Tx {
                msg: answer,
                _credits: (permit, None),
                done: None,
            });
        }
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
                    return Err(LnetError::ShutDown);
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

    /// Whether there is a connection of that type.
    pub(super) fn has(&self, ctype: ConnType) -> bool {
        self.state.lock().conns.iter().any(|c| c.ctype == ctype)
    }

    /// Waits until something about the connections changes.
    pub(super) fn changed(&self) -> tokio::sync::futures::Notified<'_> {
        self.changed.notified()
    }

    /// Dialling has ended.
    pub(super) fn dialed(&self, result: Result<(), LnetError>) {
        {
            let mut state = self.state.lock();
            state.dialing = None;
            state.rounds += 1;
            state.failure = result.err();
        }
        self.changed.notify_waiters();
    }

    /// Judges a peer's wish for a connection from `host`, which is of type `ctype` as this node, `own`, sees it.
    pub(super) fn admit(
        self: &Arc<Self>,
        own: Nid,
        ctype: ConnType,
        incarnation: u64,
        host: IpAddr,
    ) -> Admission {
        let elsewhere = |c: &Arc<Conn>| c.host.is_some_and(|of| of != host);
        if self.state.lock().conns.iter().any(elsewhere) {
            if host != IpAddr::from(self.nid.addr()) {
                return Admission::Refuse;
            }
            self.close(&LnetError::PeerLost {
                peer: self.nid,
                why: "the host of this address has connected itself".into(),
            });
        }
        self.restarted(incarnation);
        let state = self.state.lock();
        let same = state
            .conns
            .iter()
            .filter(|c| c.ctype == ctype && c.local == own)
            .count();
        let racing =
            state.dialing.is_some_and(|since| since.elapsed() < RACE_MAX) && wins_race(own, self.nid);
        if state.closed || racing || same >= ctype.limit() {
            return Admission::Retry;
        }
        Admission::Accept
    }

    /// Closes the connections of an earlier boot of the peer.
    fn restarted(self: &Arc<Self>, incarnation: u64) {
        let stale = {
            let state = self.state.lock();
            !state.conns.is_empty() && state.incarnation != incarnation
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
        local: Nid,
        ctype: ConnType,
        incarnation: u64,
        guest: Option<Guest>,
    ) {
        self.restarted(incarnation);
        let conn = Arc::new(Conn::new(stream, local, ctype, guest));
        let first = {
            let mut state = self.state.lock();
            if state.closed {
                return;
            }
            state.conns.push(conn.clone());
            state.incarnation = incarnation;
            state.conns.len() == 1
        };
        if first {
            // An error means that nobody listens.
            let _ = self.shared.events.send(PeerEvent::Up(self.nid));
        }
        tracing::debug!(peer = %self.nid, ?ctype, "connected");
        let cpt = self.shared.cpts.get(self.cpt);
        let (peer, reading) = (self.clone(), conn.clone());
        self.shared.tasks.spawn(cpt, async move {
            let why = reader::run(&reading, &peer).await;
            peer.lost(&reading, &why);
        });
        let (peer, writing) = (self.clone(), conn);
        self.shared.tasks.spawn(cpt, async move {
            let result = writer::run(&writing, &peer).await;
            writing.ended();
            if let Err(why) = result {
                peer.lost(&writing, &why);
            }
        });
        self.changed.notify_waiters();
    }

    /// A connection broke: if it is still in use, all go.
    fn lost(&self, conn: &Arc<Conn>, why: &LnetError) {
        if self.state.lock().conns.iter().any(|c| Arc::ptr_eq(c, conn)) {
            self.close(why);
        }
    }

    /// Closes all connections. What did not leave goes back to its senders, what waits for the peer's answers fails.
    pub(super) fn close(&self, why: &LnetError) {
        let conns = std::mem::take(&mut self.state.lock().conns);
        if conns.is_empty() {
            return;
        }
        tracing::debug!(peer = %self.nid, "disconnected: {why}");
        conns.iter().for_each(|conn| conn.close(why));
        self.shared.core.peer_lost(self.nid, why);
        // An error means that nobody listens.
        let _ = self.shared.events.send(PeerEvent::Down(self.nid));
        self.changed.notify_waiters();
    }

    /// Lets what is queued leave; nothing new is taken. Gives back the connections, which end by themselves.
    pub(super) fn finish(&self) -> Vec<Arc<Conn>> {
        let conns = {
            let mut state = self.state.lock();
            state.closed = true;
            state.conns.clone()
        };
        conns.iter().for_each(|conn| conn.finish());
        self.changed.notify_waiters();
        conns
    }
}

async fn acquire(of: &Arc<Semaphore>) -> Result<tokio::sync::OwnedSemaphorePermit, LnetError> {
    // Credits are never closed; if they were, it would be the end of the stack.
    of.clone().acquire_owned().await.map_err(|_| LnetError::ShutDown)
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
