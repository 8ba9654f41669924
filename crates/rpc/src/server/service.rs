//! A service: requests of one portal, queued on each partition and handled there, at most so many at once.
//!
//! LNet hands a request over on the partition that received it. It waits in that partition's queue (requests that let
//! others go on in a queue of their own, which goes first and has a few places more) until one of the partition's slots
//! is free. A slot is a task that lives as long as there is something to do. A full queue pushes back on the sender's
//! connection; a request whose client has stopped waiting is dropped; one that waits long gets an early reply.

use super::flavor;
use super::queue::{NoPlace, Queue};
use super::reply;
use super::request::Arrival;
use crate::at::{Estimate, wire_secs};
use crate::{BoxFuture, Ptlrpc, RpcConfig, ServiceConfig, Spread, opcode};
use cpt::{CptId, CptTable};
use lnet::{Full, Incoming, Lnet, PortalGuard, PutSink, warn_seldom};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep};
use wire::{Message, Nid, PTL_RPC_MSG_REQUEST};

/// What a service does with a request.
pub(crate) type Handler = fn(Arc<Ptlrpc>, Arrival) -> BoxFuture<'static, ()>;

/// How often waiting requests are looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// What a service has done and has to do on one partition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceStats {
    /// The service.
    pub name: &'static str,
    /// The partition.
    pub cpt: usize,
    /// Requests at once at most.
    pub threads: usize,
    /// Requests that wait.
    pub queued: usize,
    /// Requests that are being handled.
    pub active: usize,
    /// Requests that were handled.
    pub handled: u64,
    /// Requests that were dropped: malformed, or too late.
    pub dropped: u64,
    /// Early replies to requests that waited.
    pub early: u64,
    /// Time from arrival to reply of all handled requests together.
    pub busy: Duration,
    /// The service's estimate, in seconds.
    pub estimate_secs: u32,
}

/// One partition's share of a service.
pub(crate) struct Part {
    name: &'static str,
    cpt: CptId,
    threads: usize,
    queue: Mutex<Queue<Arrival>>,
    estimate: Mutex<Estimate>,
    handled: AtomicU64,
    dropped: AtomicU64,
    early: AtomicU64,
    busy_us: AtomicU64,
    /// Where the next slot works that is not bound to the partition.
    turn: AtomicUsize,
}

/// A service on all its partitions.
pub(crate) struct Service {
    rpc: Weak<Ptlrpc>,
    cpts: Arc<CptTable>,
    handler: Handler,
    parts: Vec<Arc<Part>>,
    /// For each of the machine's partitions, whose part takes its requests.
    part_of: Vec<usize>,
    bind: bool,
    room: Notify,
    guard: Mutex<Option<PortalGuard>>,
    early_margin: Duration,
    early_extra: Duration,
    me: Weak<Service>,
}

impl Service {
    pub(crate) fn start(
        rpc: &Weak<Ptlrpc>,
        lnet: &Arc<Lnet>,
        cpts: &Arc<CptTable>,
        times: &RpcConfig,
        cfg: &ServiceConfig,
        handler: Handler,
    ) -> Arc<Service> {
        let chosen = partitions(&cfg.spread, cpts.len());
        let now = Instant::now();
        let threads = |cpt| cfg.threads_per_cpt(chosen.len(), cpts.get(cpt).cpus().len());
        let part = |&cpt: &CptId| Part {
            name: cfg.name,
            cpt,
            threads: threads(cpt),
            queue: Mutex::new(Queue::new(cfg.queue.max(1), threads(cpt))),
            estimate: Mutex::new(Estimate::new(now, times.at_min, times.at_max, times.at_history)),
            handled: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
            early: AtomicU64::new(0),
            busy_us: AtomicU64::new(0),
            turn: AtomicUsize::new(cpt.0),
        };
        let part_of = |cpt| {
            chosen
                .iter()
                .position(|c| c.0 == cpt)
                .unwrap_or(cpt % chosen.len())
        };
        let service = Arc::new_cyclic(|me| Service {
            rpc: rpc.clone(),
            cpts: cpts.clone(),
            handler,
            parts: chosen.iter().map(part).map(Arc::new).collect(),
            part_of: (0..cpts.len()).map(part_of).collect(),
            bind: cfg.bind,
            room: Notify::new(),
            guard: Mutex::new(None),
            early_margin: times.at_early_margin,
            early_extra: times.at_extra,
            me: me.clone(),
        });
        *service.guard.lock() = Some(lnet.serve_portal(cfg.portal, service.clone()));
        service
    }

    /// Takes no more requests, and forgets those that wait.
    pub(crate) fn stop(&self) {
        self.guard.lock().take();
        for part in &self.parts {
            part.queue.lock().clear();
        }
    }

    pub(crate) fn stats(&self) -> Vec<ServiceStats> {
        self.parts.iter().map(|part| part.stats()).collect()
    }

    fn part(&self, cpt: CptId) -> &Arc<Part> {
        let i = self.part_of.get(cpt.0).copied().unwrap_or(0);
        &self.parts[i.min(self.parts.len() - 1)]
    }

    /// A slot: handles requests as long as there are any.
    async fn work(self: Arc<Self>, part: Arc<Part>) {
        let slot = SlotGuard {
            service: &self,
            part: &part,
        };
        while let Some(Next {
            mut arrival,
            was_full,
            _share,
        }) = part.next()
        {
            if was_full {
                self.room.notify_waiters();
            }
            let Some(rpc) = self.rpc.upgrade() else { break };
            let now = Instant::now();
            if now > arrival.deadline {
                warn_seldom!(service = part.name, peer = %arrival.from, xid = arrival.xid, "request came too late");
                part.dropped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            arrival.estimate_secs = part.estimate.lock().secs(now);
            let arrived = arrival.at;
            (self.handler)(rpc, arrival).await;
            part.done(arrived);
        }
        drop(slot);
    }

    fn spawn_slot(self: &Arc<Self>, part: &Arc<Part>) {
        let on = if self.bind {
            part.cpt
        } else {
            CptId(part.turn.fetch_add(1, Ordering::Relaxed) % self.cpts.len())
        };
        self.cpts.get(on).spawn(self.clone().work(part.clone()));
    }

    /// Looks after requests that wait: those whose client would soon stop waiting get an early reply.
    async fn watch(self: Arc<Self>, part: Arc<Part>) {
        loop {
            sleep(LOOK_EVERY).await;
            let Some(rpc) = self.rpc.upgrade() else { return };
            let Some(impatient) = part.impatient(self.early_margin, self.early_extra) else {
                return;
            };
            for arrival in impatient {
                let secs = wire_secs(arrival.deadline.saturating_duration_since(arrival.at));
                reply::send_early(&rpc, &arrival, &arrival.route(), secs).await;
                part.early.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The partitions that a service runs on, of `n`; never none.
fn partitions(spread: &Spread, n: usize) -> Vec<CptId> {
    let chosen: Vec<CptId> = match spread {
        Spread::All => (0..n).map(CptId).collect(),
        Spread::First => vec![CptId(0)],
        Spread::Only(cpts) => cpts.iter().copied().filter(|&cpt| cpt < n).map(CptId).collect(),
    };
    if chosen.is_empty() { vec![CptId(0)] } else { chosen }
}

impl PutSink for Service {
    fn put(&self, m: Incoming) -> Result<(), Full> {
        let part = self.part(m.cpt);
        let arrival = match read(&m, part.cpt) {
            Ok(arrival) => arrival,
            Err(why) => {
                warn_seldom!(service = part.name, peer = %m.from, xid = m.match_bits, "a request that is none is dropped: {why}");
                part.dropped.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        };
        let (new_slot, new_watch) = match part.push(arrival, m.payload.len()) {
            Ok(new) => new,
            Err(NoPlace::Full) => return Err(Full(m)),
            Err(NoPlace::Share) => {
                warn_seldom!(service = part.name, peer = %m.from, xid = m.match_bits, "a request is dropped: too many of its peer wait");
                part.dropped.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        };
        if let Some(me) = self.me.upgrade() {
            if new_slot {
                me.spawn_slot(part);
            }
            if new_watch {
                self.cpts.get(part.cpt).spawn(me.watch(part.clone()));
            }
        }
        Ok(())
    }

    fn cpts(&self) -> Option<Vec<CptId>> {
        Some(self.parts.iter().map(|part| part.cpt).collect())
    }

    fn room(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let room = self.room.notified();
            if self.parts.iter().any(|part| part.is_full()) {
                room.await;
            }
        })
    }
}

/// Reads a request; why it is none, or why its client does not wait for a reply.
fn read(m: &Incoming, cpt: CptId) -> Result<Arrival, String> {
    let mut msg = Message::parse(&m.payload.clone().into_bytes()).map_err(|e| e.to_string())?;
    if flavor::foreign(&msg).is_some() {
        msg = flavor::within(&msg);
    }
    let body = msg.body().map_err(|e| e.to_string())?;
    if body.pb_type != PTL_RPC_MSG_REQUEST || body.pb_timeout == 0 {
        let (kind, secs) = (body.pb_type, body.pb_timeout);
        return Err(format!("it is of type {kind}, and waited for {secs} s"));
    }
    let at = Instant::now();
    let deadline = at + Duration::from_secs(body.pb_timeout.into());
    Ok(Arrival {
        from: m.from,
        portal: m.portal,
        xid: m.match_bits,
        msg,
        body,
        cpt,
        at,
        deadline,
        estimate_secs: 0,
    })
}

impl Part {
    /// Places more for requests that let others go on.
    fn high_places(&self) -> usize {
        self.threads + (self.threads / 8).max(1)
    }

    /// Queues a request of so many bytes; whether a slot has to be opened for it, and whether somebody has to look after
    /// the queue. Requests that let others go on have room of their own.
    fn push(&self, arrival: Arrival, bytes: usize) -> Result<(bool, bool), NoPlace> {
        let mut queue = self.queue.lock();
        let urgent = opcode::is_high_priority(arrival.body.pb_opc);
        let slots = if urgent { self.high_places() } else { self.threads };
        queue.push(arrival.from, bytes, urgent, || arrival)?;
        let new_slot = queue.active < slots;
        if new_slot {
            queue.active += 1;
        }
        let new_watch = !new_slot && !queue.watched;
        queue.watched |= new_watch;
        Ok((new_slot, new_watch))
    }

    /// The next request for a slot; `None` gives the slot up.
    fn next(&self) -> Option<Next<'_>> {
        let mut queue = self.queue.lock();
        let was_full = queue.is_full();
        let (arrival, of) = queue.next()?;
        Some(Next {
            arrival,
            was_full,
            _share: of.map(|peer| ShareGuard { part: self, peer }),
        })
    }

    fn is_full(&self) -> bool {
        self.queue.lock().is_full()
    }

    fn done(&self, arrived: Instant) {
        let now = Instant::now();
        let took = now.saturating_duration_since(arrived);
        self.estimate.lock().measured(now, wire_secs(took));
        self.handled.fetch_add(1, Ordering::Relaxed);
        self.busy_us.fetch_add(
            u64::try_from(took.as_micros()).unwrap_or(u64::MAX),
            Ordering::Relaxed,
        );
    }

    /// Requests to ask for patience, their deadlines extended; `None` when nothing waits any more.
    fn impatient(&self, margin: Duration, extra: Duration) -> Option<Vec<Arrival>> {
        let now = Instant::now();
        let mut queue = self.queue.lock();
        if queue.len() == 0 {
            queue.watched = false;
            return None;
        }
        let soon =
            |a: &&mut Arrival| a.takes_early() && a.deadline > now && a.deadline < now + margin + LOOK_EVERY;
        let extend = |a: &mut Arrival| {
            a.deadline = now + extra;
            a.clone()
        };
        Some(queue.iter_mut().filter(soon).map(extend).collect())
    }

    fn stats(&self) -> ServiceStats {
        let (queued, active) = {
            let queue = self.queue.lock();
            (queue.len(), queue.active)
        };
        ServiceStats {
            name: self.name,
            cpt: self.cpt.0,
            threads: self.threads,
            queued,
            active,
            handled: self.handled.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            early: self.early.load(Ordering::Relaxed),
            busy: Duration::from_micros(self.busy_us.load(Ordering::Relaxed)),
            estimate_secs: self.estimate.lock().secs(Instant::now()),
        }
    }
}

/// A request that a slot has taken.
struct Next<'a> {
    arrival: Arrival,
    /// There was no room for more.
    was_full: bool,
    _share: Option<ShareGuard<'a>>,
}

/// Counts a request among those of its peer that are being handled.
struct ShareGuard<'a> {
    part: &'a Part,
    peer: Nid,
}

impl Drop for ShareGuard<'_> {
    fn drop(&mut self) {
        self.part.queue.lock().finished(self.peer);
    }
}

/// Gives a slot back, also when a handler panicked; then what waits gets another.
struct SlotGuard<'a> {
    service: &'a Arc<Service>,
    part: &'a Arc<Part>,
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        let mut queue = self.part.queue.lock();
        queue.active -= 1;
        if queue.needs_slot() {
            queue.active += 1;
            drop(queue);
            self.service.spawn_slot(self.part);
        }
    }
}
