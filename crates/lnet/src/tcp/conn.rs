//! One TCP connection to a peer: its socket and its queue of messages to send.
//!
//! Whoever queues here holds credits, so that the queue is bounded by them. A message that did not leave completely
//! before the connection broke comes back: the peer drops a half frame, so it is safe to send it again elsewhere.

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
use std::net::{IpAddr, Shutdown};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};

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

#[derive(Debug, Default)]
struct Queue {
    txs: VecDeque<Tx>,
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
    pub(super) stream: TcpStream,
    /// Where the peer is; not known when it is gone already.
    pub(super) host: Option<IpAddr>,
    _guest: Option<Guest>,
    queue: Mutex<Queue>,
    queued: AtomicUsize,
    wake: Notify,
    ended: Semaphore,
}

/// What the writer has to do next.
pub(super) enum Work {
    /// These messages, and cookies that found none to travel with.
    Send(Vec<(Tx, u64)>, Vec<[u64; 2]>),
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
        stream: TcpStream,
        ni: Arc<Ni>,
        cpt: CptId,
        ctype: ConnType,
        guest: Option<Guest>,
    ) -> Conn {
        Conn {
            ni,
            cpt,
            ctype,
            host: stream.peer_addr().ok().map(|addr| addr.ip()),
            stream,
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

    /// Queues a cookie to give back; `false` if too many wait already.
    pub(super) fn give_back(&self, cookie: u64) -> bool {
        let kept = self.queue.lock().cookies.push(cookie);
        self.wake.notify_one();
        kept
    }

    /// Waits for something to send, at most `idle`.
    pub(super) async fn work(&self, idle: Duration) -> Work {
        loop {
            if let Some(work) = self.take() {
                return work;
            }
            if tokio::time::timeout(idle, self.wake.notified()).await.is_err() {
                return self.take().unwrap_or(Work::Idle);
            }
            // Others are about to send as well, often: what they queue before this task's next turn leaves in the same write.
            tokio::task::yield_now().await;
        }
    }

    fn take(&self) -> Option<Work> {
        let mut queue = self.queue.lock();
        if queue.closed.is_some() {
            return Some(Work::End);
        }
        let mut bytes = 0;
        let mut batch = Vec::with_capacity(queue.txs.len().min(BATCH_MAX));
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES {
            let Some(tx) = queue.txs.pop_front() else { break };
            bytes += tx.msg.payload.len();
            let cookie = queue.cookies.piggyback();
            batch.push((tx, cookie));
        }
        self.queued.store(queue.txs.len(), Ordering::Relaxed);
        let mut noops = Vec::new();
        while noops.len() < BATCH_MAX && !queue.cookies.is_empty() {
            noops.extend(queue.cookies.noop());
        }
        if batch.is_empty() && noops.is_empty() {
            return queue.finishing.then_some(Work::End);
        }
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
        let txs = {
            let mut queue = self.queue.lock();
            if queue.closed.is_none() {
                queue.closed = Some(why.clone());
            }
            std::mem::take(&mut queue.txs)
        };
        // Wakes the reader and the writer too; an error means that the socket is dead already.
        let _ = SockRef::from(&self.stream).shutdown(Shutdown::Both);
        self.wake.notify_one();
        txs.into_iter().for_each(|tx| tx.unsent(why));
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
