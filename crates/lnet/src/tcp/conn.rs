//! One TCP connection to a peer: the sending half of its socket and the queue of messages to send.
//!
//! Only one task writes at a time: the writer task sends the queue, or a sender writes its own
//! message directly if the queue is empty; the writer then sends any rest. The queue is bounded,
//! because each message holds credits or, as an answer, a permit. A message that was not sent
//! completely when the connection broke is returned to its sender: the peer drops a partial frame,
//! so the sender can send the message again. Unsent answers are dropped.

use super::diag::{Diag, Diagnosis};
use super::hello::ConnType;
use super::hosts::HostSlot;
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

/// A message to send.
#[derive(Debug)]
pub(super) struct Tx {
    pub(super) msg: Msg,
    /// Released when the message has been sent or given up.
    pub(super) _reservation: Reservation,
    /// Reports the result to the waiting sender; `None` for answers, for which no task waits.
    pub(super) done: Option<oneshot::Sender<Result<(), SendFailure>>>,
}

/// The limits that a message to send counts against.
#[derive(Debug)]
#[allow(dead_code)] // held only to be released on drop
pub(super) enum Reservation {
    /// A credit of the peer and one of the interface's partition.
    Credits(Credit, Credit),
    /// A permit for one of the unsent answers to the peer.
    Answer(OwnedSemaphorePermit),
}

/// A message that was not sent, and the reason.
#[derive(Debug)]
pub(super) struct SendFailure {
    pub(super) msg: Msg,
    pub(super) why: LnetError,
}

impl Tx {
    /// Reports that the message has been sent.
    pub(super) fn report_sent(self) {
        if let Some(done) = self.done {
            // An error means that the sender has given up.
            let _ = done.send(Ok(()));
        }
    }

    /// Reports that the message has not been sent, or not completely.
    pub(super) fn report_unsent(self, why: &LnetError) {
        if let Some(done) = self.done {
            // An error means that the sender has given up.
            let _ = done.send(Err(SendFailure {
                msg: self.msg,
                why: why.clone(),
            }));
        }
    }
}

/// A message being sent: the cookie in its header and the number of bytes written so far.
#[derive(Debug)]
pub(super) struct PartialTx {
    pub(super) tx: Tx,
    pub(super) cookie: u64,
    pub(super) written: usize,
}

/// The current user of the socket.
#[derive(Debug, Default, PartialEq, Eq)]
enum SocketUser {
    #[default]
    None,
    /// A sender, for its own message.
    Sender,
    /// The writer task, for queued messages.
    Writer,
}

#[derive(Debug, Default)]
struct Queue {
    /// The rest of a message that a sender wrote in part; it precedes all others.
    partial: Option<PartialTx>,
    txs: VecDeque<Tx>,
    user: SocketUser,
    /// Whether a sender has written directly since the writer task last checked for idleness.
    sender_wrote: bool,
    cookies: Cookies,
    /// Whether to end the connection once the queue is empty.
    finishing: bool,
    /// Why the connection was closed, if it was.
    closed: Option<LnetError>,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Conn {
    /// This node's interface. The peer knows this node by the interface's NID.
    pub(super) ni: Arc<Ni>,
    /// The partition that reads and writes the connection.
    pub(super) cpt: CptId,
    pub(super) ctype: ConnType,
    pub(super) stream: OwnedWriteHalf,
    /// When the connection was established.
    pub(super) opened_at: Instant,
    /// Whether bytes were written that the peer's host may not have acknowledged.
    unacked: AtomicBool,
    _host_slot: Option<HostSlot>,
    queue: Mutex<Queue>,
    /// The length of `queue.txs`, readable without the lock.
    queued: AtomicUsize,
    /// Wakes the writer task.
    wake: Notify,
    /// Closed when the writer task ends.
    ended: Semaphore,
}

/// The next action of the writer task.
pub(super) enum Work {
    /// Send these messages (the first perhaps written in part) and, in NOOPs, the cookies that did
    /// not fit into messages.
    Send(Vec<PartialTx>, Vec<[u64; 2]>),
    /// Send a keepalive message: the connection was idle for the configured time.
    Keepalive,
    /// End the connection.
    End,
}

/// Maximum number of messages in one vectored write, and of NOOPs.
const BATCH_MAX: usize = 64;
/// Size of the payloads of one vectored write, in bytes, at which no further message is added.
const BATCH_BYTES: usize = 2 << 20;
/// TCP probes the peer's host after this time without data.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// Interval of TCP's probes while the peer's host does not answer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
/// Number of unanswered probes after which TCP closes the connection.
const KEEPALIVE_PROBES: u32 = 5;

impl Conn {
    /// A connection. `host_slot` counts it among the connections that the peer's host opened;
    /// `None` if this node opened it.
    pub(super) fn new(
        stream: OwnedWriteHalf,
        ni: Arc<Ni>,
        cpt: CptId,
        ctype: ConnType,
        host_slot: Option<HostSlot>,
    ) -> Conn {
        Conn {
            ni,
            cpt,
            ctype,
            stream,
            opened_at: Instant::now(),
            unacked: AtomicBool::new(false),
            _host_slot: host_slot,
            queue: Mutex::default(),
            queued: AtomicUsize::new(0),
            wake: Notify::new(),
            ended: Semaphore::new(0),
        }
    }

    /// Number of queued messages.
    pub(super) fn queued(&self) -> usize {
        self.queued.load(Ordering::Relaxed)
    }

    /// Records that bytes are being written.
    pub(super) fn mark_written(&self) {
        if !self.unacked.load(Ordering::Relaxed) {
            self.unacked.store(true, Ordering::Relaxed);
        }
    }

    /// Whether bytes were written that the peer's host may not have acknowledged.
    pub(super) fn has_unacked(&self) -> bool {
        self.unacked.load(Ordering::Relaxed)
    }

    /// Queries the kernel for the state of the socket; `None` if the kernel does not report it.
    pub(super) fn diagnose(&self, diag: &mut Diag) -> Option<Diagnosis> {
        // Cleared before the query: bytes that are written after the query set the flag again.
        self.unacked.store(false, Ordering::Relaxed);
        let found = match (self.stream.local_addr(), self.stream.peer_addr()) {
            (Ok(SocketAddr::V4(local)), Ok(SocketAddr::V4(remote))) => diag.find_connection(local, remote),
            _ => Ok(None),
        };
        if !matches!(
            found,
            Ok(Some(Diagnosis {
                unacknowledged: 0,
                ..
            }))
        ) {
            self.mark_written();
        }
        found.unwrap_or_else(|e| {
            tracing::debug!("sock_diag: {e}");
            None
        })
    }

    /// Queues a message; if the connection is closed, reports a failure to its sender.
    pub(super) fn push(&self, tx: Tx) {
        let mut queue = self.queue.lock();
        if let Some(why) = queue.closed.clone() {
            drop(queue);
            return tx.report_unsent(&why);
        }
        queue.txs.push_back(tx);
        self.queued.store(queue.txs.len(), Ordering::Relaxed);
        drop(queue);
        self.wake.notify_one();
    }

    /// Lets a sender write its message directly if nothing precedes it; the sender must then call
    /// [`Conn::end_write`]. Otherwise queues the message.
    pub(super) fn begin_write(&self, tx: Tx) -> Option<PartialTx> {
        let mut queue = self.queue.lock();
        let is_next = queue.txs.is_empty() && queue.partial.is_none() && queue.user == SocketUser::None;
        if !is_next || queue.finishing || queue.closed.is_some() {
            drop(queue);
            self.push(tx);
            return None;
        }
        (queue.user, queue.sender_wrote) = (SocketUser::Sender, true);
        let (cookie, written) = (queue.cookies.piggyback(), 0);
        Some(PartialTx { tx, cookie, written })
    }

    /// Releases the socket after a direct write; the writer task sends the rest of the message.
    pub(super) fn end_write(&self, rest: Option<PartialTx>) {
        let mut queue = self.queue.lock();
        queue.user = SocketUser::None;
        match (rest, queue.closed.clone()) {
            (Some(rest), Some(why)) => {
                drop(queue);
                return rest.tx.report_unsent(&why);
            }
            (rest, _) => queue.partial = rest,
        }
        let has_work = queue.partial.is_some() || !queue.txs.is_empty() || !queue.cookies.is_empty();
        if has_work || queue.finishing {
            drop(queue);
            self.wake.notify_one();
        }
    }

    /// Queues a cookie to return; `false` if too many are queued.
    pub(super) fn return_cookie(&self, cookie: u64) -> bool {
        let queued = self.queue.lock().cookies.push(cookie);
        self.wake.notify_one();
        queued
    }

    /// Waits for the writer task's next action. After `idle` without a write, the action is
    /// [`Work::Keepalive`].
    pub(super) async fn next_work(&self, idle: Duration) -> Work {
        loop {
            if let Some(work) = self.take_work(false) {
                return work;
            }
            if tokio::time::timeout(idle, self.wake.notified()).await.is_err() {
                match self.take_work(true) {
                    Some(work) => return work,
                    None => continue,
                }
            }
            // Other senders often follow at once: messages queued before this task's next turn are
            // sent in the same write.
            tokio::task::yield_now().await;
        }
    }

    /// The next action, if there is one. With `idle`, returns [`Work::Keepalive`] if there is
    /// nothing to send and no sender has written directly since the previous call with `idle`.
    fn take_work(&self, idle: bool) -> Option<Work> {
        let mut queue = self.queue.lock();
        if queue.closed.is_some() {
            return Some(Work::End);
        }
        if queue.user == SocketUser::Sender {
            // The sender wakes this task when it is done.
            return None;
        }
        queue.user = SocketUser::None;
        let mut bytes = 0;
        let mut batch = Vec::with_capacity(queue.txs.len().min(BATCH_MAX));
        batch.extend(queue.partial.take());
        while batch.len() < BATCH_MAX && bytes < BATCH_BYTES {
            let Some(tx) = queue.txs.pop_front() else { break };
            bytes += tx.msg.payload.len();
            let (cookie, written) = (queue.cookies.piggyback(), 0);
            batch.push(PartialTx { tx, cookie, written });
        }
        self.queued.store(queue.txs.len(), Ordering::Relaxed);
        let mut noops = Vec::new();
        while noops.len() < BATCH_MAX && !queue.cookies.is_empty() {
            noops.extend(queue.cookies.noop());
        }
        if batch.is_empty() && noops.is_empty() {
            let idle = idle && !std::mem::take(&mut queue.sender_wrote);
            return match idle && !queue.finishing {
                true => {
                    queue.user = SocketUser::Writer;
                    Some(Work::Keepalive)
                }
                false => queue.finishing.then_some(Work::End),
            };
        }
        queue.user = SocketUser::Writer;
        Some(Work::Send(batch, noops))
    }

    /// Records the end of the writer task.
    pub(super) fn mark_writer_ended(&self) {
        self.ended.close();
    }

    /// Waits for the end of the writer task.
    pub(super) async fn ended(&self) {
        // The semaphore has no permits: this resolves, with an error, when it is closed.
        let _ = self.ended.acquire().await;
    }

    /// Ends the connection once the writer task has sent the queue.
    pub(super) fn finish(&self) {
        self.queue.lock().finishing = true;
        self.wake.notify_one();
    }

    /// Closes the connection at once; queued messages are returned to their senders.
    pub(super) fn close(&self, why: &LnetError) {
        let (partial, txs) = {
            let mut queue = self.queue.lock();
            if queue.closed.is_none() {
                queue.closed = Some(why.clone());
            }
            (queue.partial.take(), std::mem::take(&mut queue.txs))
        };
        // Also wakes the reader and the writer; an error means that the socket is dead already.
        let _ = SockRef::from(self.stream.as_ref()).shutdown(Shutdown::Both);
        self.wake.notify_one();
        let partial = partial.map(|partial| partial.tx);
        partial
            .into_iter()
            .chain(txs)
            .for_each(|tx| tx.report_unsent(why));
    }
}

/// Sets the options of every connection: no delay, and detection of dead hosts of peers.
pub(super) fn set_options(stream: &TcpStream, sock_timeout: Duration) -> std::io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_IDLE)
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(sock_timeout))
}
