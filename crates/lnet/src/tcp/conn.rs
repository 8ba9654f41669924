//! One TCP connection to a peer: its socket's sending end and the queue of messages to send.
//!
//! One at a time writes: the writer what is queued, or a sender its own message when nothing is before it; what the socket does
//! not take of that is the writer's. Whoever queues here holds credits, so that the queue is bounded by them. A message that did not
//! leave completely before the connection broke comes back: the peer drops a half frame, so it is safe to send it again elsewhere.

use super::diag::{Diag, Diagnosis};
use super::hello::ConnType;
use super::hosts::Guest;
use super::zc::Cookies;
use crate::LnetError;
use crate::credits::Credit;
use crate::message::Msg;
use crate::ni::Ni;
use cpt::CptId;
use parking_lot::Mutex;
use socket2::{SockRef, TcpKeepalive};
use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

/// A message on its way out.
#[derive(Debug)]
pub(super) struct Tx {
    pub(super) msg: Msg,
    /// Given back when the message has left.
    pub(super) _room: Room,
    /// Hears how it went; answers to the peer have nobody who waits.
    pub(super) done: Option<oneshot::Sender<Result<(), Unsent>>>,
}

/// What a message on its way out takes.
#[derive(Debug)]
#[allow(dead_code)] // held, never looked at
pub(super) enum Room {
    /// A credit of the peer and one of the interface's partition.
    Credits(Credit, Credit),
    /// One of the peer's answers.
    Answer(OwnedSemaphorePermit),
}

/// A message that did not leave, and why.
#[derive(Debug)]
pub(super) struct Unsent {
    pub(super) msg: Msg,
    pub(super) why: LnetError,
}

impl Tx {
    /// It has left.
    pub(super) fn sent(self) {
        if let Some(done) = self.done {
            // An error means that nobody waits any more.
            let _ = done.send(Ok(()));
        }
    }

    /// It has not, or not completely.
    pub(super) fn unsent(self, why: &LnetError) {
        if let Some(done) = self.done {
            // An error means that nobody waits any more.
            let _ = done.send(Err(Unsent {
                msg: self.msg,
                why: why.clone(),
            }));
        }
    }
}

/// A message with the cookie that it takes along, and how many bytes of it have left.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) tx: Tx,
    pub(super) cookie: u64,
    pub(super) written: usize,
}

/// Who uses the socket.
#[derive(Debug, Default, PartialEq, Eq)]
enum Writing {
    #[default]
    Nobody,
    /// A sender its own message.
    Sender,
    /// The writer what was queued.
    Writer,
}

#[derive(Debug, Default)]
struct Queue {
    /// What a sender has begun: goes before all others.
    begun: Option<Begun>,
    txs: VecDeque<Tx>,
    writing: Writing,
    /// A sender has written since the writer last looked whether the connection is idle.
    used: bool,
    cookies: Cookies,
    /// Send what is there, then end.
    finishing: bool,
    closed: Option<LnetError>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    /// This node's interface, whose NID the peer knows.
    pub(super) ni: Arc<Ni>,
    /// The partition that reads and writes it.
    pub(super) cpt: CptId,
    pub(super) ctype: ConnType,
    pub(super) stream: OwnedWriteHalf,
    /// When it was made.
    pub(super) since: Instant,
    /// Something was written that the peer's host is not known to have acknowledged.
    unproven: AtomicBool,
    _guest: Option<Guest>,
    queue: Mutex<Queue>,
    queued: AtomicUsize,
    wake: Notify,
    ended: Semaphore,
}

/// What the writer has to do next.
pub(super) enum Work {
    /// These messages, the first perhaps begun, and cookies that found none to travel with.
    Send(Vec<Begun>, Vec<[u64; 2]>),
    /// Nothing was to send for so long that the peer should be asked whether it lives.
    Idle,
    /// No more.
    End,
}

/// Messages and bytes that leave in one vectored write.
const BATCH_MAX: usize = 64;
const BATCH_BYTES: usize = 2 << 20;

impl Conn {
    /// A connection that the peer has opened counts among those of its host.
    pub(super) fn new(
        stream: OwnedWriteHalf,
        ni: Arc<Ni>,
        cpt: CptId,
        ctype: ConnType,
        guest: Option<Guest>,
    ) -> Conn {
        Conn {
            ni,
            cpt,
            ctype,
            stream,
            since: Instant::now(),
            unproven: AtomicBool::new(false),
            _guest: guest,
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            wake: Notify::new(),
            ended: Semaphore::new(0),
        }
    }

    /// How many messages wait.
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Something is written.
    pub(super) fn writes(&self) {
        if !self.unproven.load(Ordering::Relaxed) {
            self.unproven.store(true, Ordering::Relaxed);
        }
    }

    /// Whether something was written that the peer's host is not known to have acknowledged.
    pub(super) fn is_unproven(&self) -> bool {
        self.unproven.load(Ordering::Relaxed)
    }

    /// What the kernel knows of the socket; `None` if it does not say.
    pub(super) fn diagnose(&self, diag: &mut Diag) -> Option<Diagnosis> {
        // What is written from here on is not in the answer.
        self.unproven.store(false, Ordering::Relaxed);
        let found = match (self.stream.local_addr(), self.stream.peer_addr()) {
            (Ok(SocketAddr::V4(local)), Ok(SocketAddr::V4(remote))) => diag.ask(local, remote),
            _ => Ok(None),
        };
        if !matches!(
            found,
            Ok(Some(Diagnosis {
                unacknowledged: 0,
                ..
            }))
        ) {
            self.writes();
        }
        found.unwrap_or_else(|e| {
            tracing::debug!("sock_diag: {e}");
            None
        })
    }

    /// Queues a message; if the connection is closed, its sender hears so.
    pub(super) fn push(&self, tx: Tx) {
        let mut queue = self.queue.lock();
        if let Some(why) = queue.closed.clone() {
            drop(queue);
            return tx.unsent(&why);
        }
        queue.txs.push_back(tx);
        self.queued.store(queue.txs.len(), Ordering::Relaxed);
        drop(queue);
        self.wake.notify_one();
    }

    /// Gives a sender the socket for its message if nothing is before it; [`Conn::written`] has to follow. Otherwise queues it.
    pub(super) fn begin(&self, tx: Tx) -> Option<Begun> {
        let mut queue = self.queue.lock();
        let first = queue.txs.is_empty() && queue.begun.is_none() && queue.writing == Writing::Nobody;
        if !first || queue.finishing || queue.closed.is_some() {
            drop(queue);
            self.push(tx);
            return None;
        }
        (queue.writing, queue.used) = (Writing::Sender, true);
        let (cookie, written) = (queue.cookies.piggyback(), 0);
        Some(Begun { tx, cookie, written })
    }

    /// The sender that had the socket is done with it; the writer sees to what is left of its message.
    pub(super) fn written(&self, rest: Option<Begun>) {
        let mut queue = self.queue.lock();
        queue.writing = Writing::Nobody;
        match (rest, queue.closed.clone()) {
            (Some(rest), Some(why)) => {
                drop(queue);
                return rest.tx.unsent(&why);
            }
            (rest, _) => queue.begun = rest,
        }
        let left = queue.begun.is_some() || !queue.txs.is_empty() || !queue.cookies.is_empty();
        if left || queue.finishing {
            drop(queue);
            self.wake.notify_one();
        }
    }

    /// Queues a cookie to give back; `false` if too many wait already.
    pub(super) fn give_back(&self, cookie: u64) -> bool {
        let kept = self.queue.lock().cookies.push(cookie);
        self.wake.notify_one();
        kept
    }

    /// Waits for something to send, at most `idle`.
    pub(super) async fn work(&self, idle: Duration) -> Work {
        loop {
            if let Some(work) = self.take(false) {
                return work;
            }
            if tokio::time::timeout(idle, self.wake.notified()).await.is_err() {
                match self.take(true) {
                    Some(work) => return work,
                    None => continue,
                }
            }
            // Others are about to send as well, often: what they queue before this task's next turn leaves in the same write.
            tokio::task::yield_now().await;
        }
    }

    /// What there is to do; if nothing is, and nothing was since this was last asked `idle`, that.
    fn take(&self, idle: bool) -> Option<Work> {
        let mut queue = self.queue.lock();
        if queue.closed.is_some() {
            return Some(Work::End);
        }
        if queue.writing == Writing::Sender {
            // Says so when it is done.
            return None;
        }
        queue.writing = Writing::Nobody;
        let mut bytes = 0;
        let mut batch = Vec::with_capacity(queue.txs.len().min(BATCH_MAX));
        batch.extend(queue.begun.take());
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES {
            let Some(tx) = queue.txs.pop_front() else { break };
            bytes += tx.msg.payload.len();
            let (cookie, written) = (queue.cookies.piggyback(), 0);
            batch.push(Begun { tx, cookie, written });
        }
        self.queued.store(queue.txs.len(), Ordering::Relaxed);
        let mut noops = Vec::new();
        while noops.len() < BATCH_MAX && !queue.cookies.is_empty() {
            noops.extend(queue.cookies.noop());
        }
        if batch.is_empty() && noops.is_empty() {
            let idle = idle && !std::mem::take(&mut queue.used);
            return match idle && !queue.finishing {
                true => {
                    queue.writing = Writing::Writer;
                    Some(Work::Idle)
                }
                false => queue.finishing.then_some(Work::End),
            };
        }
        queue.writing = Writing::Writer;
        Some(Work::Send(batch, noops))
    }

    /// The writer has ended: everything has left or never will.
    pub(super) fn ended(&self) {
        self.ended.close();
    }

    /// Waits for the writer's end.
    pub(super) async fn drained(&self) {
        // Has no permits: this resolves, with an error, when it is closed.
        let _ = self.ended.acquire().await;
    }

    /// Lets what is queued leave, then ends.
    pub(super) fn finish(&self) {
        self.queue.lock().finishing = true;
        self.wake.notify_one();
    }

    /// Closes the connection at once; what is queued comes back to its senders.
    pub(super) fn close(&self, why: &LnetError) {
        let (begun, txs) = {
            let mut queue = self.queue.lock();
            if queue.closed.is_none() {
                queue.closed = Some(why.clone());
            }
            (queue.begun.take(), std::mem::take(&mut queue.txs))
        };
        // Wakes the reader and the writer too; an error means that the socket is dead already.
        let _ = SockRef::from(self.stream.as_ref()).shutdown(Shutdown::Both);
        self.wake.notify_one();
        let begun = begun.map(|b| b.tx);
        begun.into_iter().chain(txs).for_each(|tx| tx.unsent(why));
    }
}

/// Sets what every connection has: no delay, and dead peers noticed.
pub(super) fn set_options(stream: &TcpStream, sock_timeout: Duration) -> std::io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    let probe = Duration::from_secs(5);
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(probe)
        .with_retries(5);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(sock_timeout))
}
