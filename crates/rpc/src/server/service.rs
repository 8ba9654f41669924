//! Services: requests of one portal, queued and handled on each partition, with a limit of
//! concurrent requests.
//!
//! LNet delivers a request to the queue of a partition, where the request waits until a slot is
//! free. High-priority requests have their own queue, which slots serve first, and a few more
//! slots. A slot is a task that lives while there are requests. For a request of this node itself,
//! the sender's thread polls the slot once, so that a request that need not wait wakes no other
//! thread. A full queue stalls the sender's connection. A request is dropped if its client has
//! stopped waiting. A request that waits long gets an early reply.

use super::nrs::Policy;
use super::partition::{NextRequest, RequiredTasks, ServicePartition, ServiceStats, WATCH_INTERVAL};
use super::queue::PushError;
use super::reply;
use super::request::Arrival;
use super::stats::CounterIndex;
use super::{flavor, inline_dispatch};
use crate::at::{Estimate, wire_secs};
use crate::services::Cpus;
use crate::{BoxFuture, Ptlrpc, RpcConfig, ServiceConfig, Spread};
use cpt::{CptId, CptTable};
use lnet::{IncomingPut, Lnet, PortalGuard, PutSink, SinkFull, warn_rate_limited};
use params::Group;
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};
use wire::{Message, Nid, PTL_RPC_MSG_REQUEST, Xid};

/// Handles a request.
pub(crate) type Handler = fn(Arc<Ptlrpc>, Arrival) -> BoxFuture<'static, ()>;

/// A service on all its partitions.
pub(crate) struct Service {
    pub(super) name: &'static str,
    rpc: Weak<Ptlrpc>,
    cpts: Arc<CptTable>,
    handler: Handler,
    pub(super) parts: Vec<Arc<ServicePartition>>,
    /// For each partition of the process, the index in `parts` of the partition that takes its
    /// requests.
    part_index: Vec<usize>,
    bind: bool,
    /// Minimum of threads per partition.
    pub(super) threads_min: usize,
    /// The limit of threads per partition when the service started; `threads_max` can be at
    /// most eight times this.
    pub(super) threads_at_start: usize,
    /// The scheduling policy, for display and changes; the queues have copies.
    pub(super) policy: Mutex<Policy>,
    pub(super) tbf_rate: u64,
    pub(super) tbf_depth: u32,
    /// When the service started, or the statistics were last reset.
    pub(super) stats_since: Mutex<SystemTime>,
    /// Notified when a full queue has space again.
    space: Notify,
    guard: Mutex<Option<PortalGuard>>,
    /// The registered parameters.
    param_group: Mutex<Option<Group>>,
    early_margin: Duration,
    early_extra: Duration,
    me: Weak<Service>,
}

impl Service {
    pub(crate) fn start(
        rpc: &Weak<Ptlrpc>,
        lnet: &Arc<Lnet>,
        cpts: &Arc<CptTable>,
        rpc_cfg: &RpcConfig,
        cfg: &ServiceConfig,
        handler: Handler,
    ) -> Arc<Service> {
        let service_cpts = partitions(&cfg.spread, cpts.len());
        let now = cpt::now();
        let threads = cfg.threads_per_cpt(service_cpts.len(), &Cpus::of(cpts));
        let part = |&cpt: &CptId| {
            let estimate = Estimate::new(now, rpc_cfg.at_min, rpc_cfg.at_max, rpc_cfg.at_history);
            ServicePartition::new(cfg.name, cpt, cfg.queue, threads, estimate)
        };
        let part_index = |cpt| {
            service_cpts
                .iter()
                .position(|c| c.0 == cpt)
                .unwrap_or(cpt % service_cpts.len())
        };
        let service = Arc::new_cyclic(|me| Service {
            name: cfg.name,
            rpc: rpc.clone(),
            cpts: cpts.clone(),
            handler,
            parts: service_cpts.iter().map(part).map(Arc::new).collect(),
            part_index: (0..cpts.len()).map(part_index).collect(),
            bind: cfg.bind,
            threads_min: cfg.threads_min(service_cpts.len()),
            threads_at_start: threads,
            policy: Mutex::new(Policy::Fifo),
            tbf_rate: rpc_cfg.tbf_rate,
            tbf_depth: rpc_cfg.tbf_depth,
            stats_since: Mutex::new(SystemTime::now()),
            param_group: Mutex::new(None),
            space: Notify::new(),
            guard: Mutex::new(None),
            early_margin: rpc_cfg.at_early_margin,
            early_extra: rpc_cfg.at_extra,
            me: me.clone(),
        });
        *service.param_group.lock() = Some(super::service_params::register(&service, &rpc_cfg.params));
        *service.guard.lock() = Some(lnet.serve_portal(cfg.portal, service.clone()));
        service
    }

    /// Stops taking requests and drops those in the queues.
    pub(crate) fn stop(&self) {
        self.guard.lock().take();
        self.param_group.lock().take();
        for part in &self.parts {
            part.queue.lock().clear();
        }
    }

    pub(crate) fn stats(&self) -> Vec<ServiceStats> {
        self.parts.iter().map(|part| part.stats()).collect()
    }

    fn part(&self, cpt: CptId) -> &Arc<ServicePartition> {
        let i = self.part_index.get(cpt.0).copied().unwrap_or(0);
        &self.parts[i.min(self.parts.len() - 1)]
    }

    /// The task of a slot: handles requests while there are any.
    async fn run_slot(self: Arc<Self>, part: Arc<ServicePartition>) {
        let slot = SlotGuard {
            service: &self,
            part: &part,
        };
        let mut next = part.next();
        while let Some(request) = next {
            let Some(rpc) = self.rpc.upgrade() else { break };
            self.handle(rpc, &part, request).await;
            next = part.next();
            if next.is_some() {
                inline_dispatch::wait_until_outside().await;
            }
        }
        drop(slot);
    }

    async fn handle(&self, rpc: Arc<Ptlrpc>, part: &ServicePartition, next: NextRequest<'_>) {
        let NextRequest {
            arrival,
            was_full,
            _handling,
        } = next;
        if was_full {
            self.space.notify_waiters();
        }
        let now = Instant::now();
        if now > arrival.deadline {
            warn_rate_limited!(service = part.name, peer = %arrival.from, xid = %arrival.xid, "dropping request: its deadline passed in the queue");
            part.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (arrived, counter) = (arrival.arrived_at, CounterIndex::for_arrival(&arrival));
        (self.handler)(rpc, arrival).await;
        part.record_handled(counter, arrived, now);
    }

    /// The partition that a new slot runs on.
    fn next_cpt(&self, part: &ServicePartition) -> CptId {
        match self.bind {
            true => part.cpt,
            false => CptId(part.turn.fetch_add(1, Ordering::Relaxed) % self.cpts.len()),
        }
    }

    pub(super) fn spawn_slot(self: &Arc<Self>, part: &Arc<ServicePartition>) {
        let cpt = self.next_cpt(part);
        self.cpts.get(cpt).spawn(self.clone().run_slot(part.clone()));
    }

    /// Starts the task of a slot for a request that this thread sent. Polls the task inline first
    /// if its partition may run on this thread.
    fn begin_slot(self: &Arc<Self>, part: &Arc<ServicePartition>) {
        let cpt_id = self.next_cpt(part);
        let (cpt, work) = (self.cpts.get(cpt_id), self.clone().run_slot(part.clone()));
        match inline_dispatch::try_enter().filter(|_| self.cpts.may_run_here(cpt_id)) {
            Some(_inside) => cpt::poll_then_spawn(cpt.handle(), work),
            None => drop(cpt.spawn(work)),
        }
    }

    /// Waits for tokens as long as requests need them, and opens slots for these requests.
    pub(super) async fn await_tokens(self: Arc<Self>, part: Arc<ServicePartition>) {
        while let Some(at) = part.next_token() {
            tokio::select! {
                biased;
                () = sleep_until(at) => {}
                () = part.earlier_token.notified() => {}
            }
            self.spawn_slots(&part);
        }
    }

    /// Opens slots for queued requests that can run.
    pub(super) fn spawn_slots(self: &Arc<Self>, part: &Arc<ServicePartition>) {
        (0..part.open_slots()).for_each(|_| self.spawn_slot(part));
    }

    /// Spawns a waiter for tokens on a partition.
    pub(super) fn spawn_token_waiter(self: &Arc<Self>, part: &Arc<ServicePartition>) {
        self.cpts
            .get(part.cpt)
            .spawn(self.clone().await_tokens(part.clone()));
    }

    /// Watches queued requests: sends early replies to clients that would soon stop waiting.
    async fn watch_deadlines(self: Arc<Self>, part: Arc<ServicePartition>) {
        loop {
            sleep(WATCH_INTERVAL).await;
            let Some(rpc) = self.rpc.upgrade() else { return };
            let Some(extended) = part.extend_deadlines(self.early_margin, self.early_extra) else {
                return;
            };
            for arrival in extended {
                let secs = wire_secs(arrival.deadline.saturating_duration_since(arrival.arrived_at));
                reply::send_early(&rpc, &arrival, &arrival.route(), secs).await;
                part.early.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The partitions, of `n`, that a service runs on; at least one.
fn partitions(spread: &Spread, n: usize) -> Vec<CptId> {
    let chosen: Vec<CptId> = match spread {
        Spread::All => (0..n).map(CptId).collect(),
        Spread::First => vec![CptId(0)],
        Spread::Only(cpts) => cpts.iter().copied().filter(|&cpt| cpt < n).map(CptId).collect(),
    };
    if chosen.is_empty() { vec![CptId(0)] } else { chosen }
}

impl PutSink for Service {
    fn put(&self, incoming: IncomingPut) -> Result<(), SinkFull> {
        let part = self.part(incoming.cpt);
        let arrival = match parse_arrival(&incoming, part.cpt) {
            Ok(arrival) => arrival,
            Err(why) => {
                warn_rate_limited!(service = part.name, peer = %incoming.from, xid = incoming.match_bits, "dropping malformed request: {why}");
                part.dropped.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        };
        let required_tasks = match part.push(arrival, incoming.payload.len()) {
            Ok(required_tasks) => required_tasks,
            Err(PushError::QueueFull) => return Err(SinkFull(incoming)),
            Err(PushError::PeerQuotaExceeded) => {
                warn_rate_limited!(service = part.name, peer = %incoming.from, xid = incoming.match_bits, "dropping request: too many requests of its peer are queued");
                part.dropped.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        };
        if required_tasks == RequiredTasks::default() {
            return Ok(());
        }
        if let Some(me) = self.me.upgrade() {
            if required_tasks.slot && incoming.from == Nid::LO {
                me.begin_slot(part);
            } else if required_tasks.slot {
                me.spawn_slot(part);
            }
            if required_tasks.token_waiter {
                me.spawn_token_waiter(part);
            }
            if required_tasks.watcher {
                self.cpts.get(part.cpt).spawn(me.watch_deadlines(part.clone()));
            }
        }
        Ok(())
    }

    fn cpts(&self) -> Option<Vec<CptId>> {
        Some(self.parts.iter().map(|part| part.cpt).collect())
    }

    fn wait_for_space(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            let space = self.space.notified();
            if self.parts.iter().any(|part| part.is_full()) {
                space.await;
            }
        })
    }
}

/// Parses a request.
///
/// # Errors
///
/// The request is malformed, or its client does not wait for a reply.
fn parse_arrival(incoming: &IncomingPut, cpt: CptId) -> Result<Arrival, String> {
    let mut msg = Message::parse(&incoming.payload.clone().into_bytes()).map_err(|e| e.to_string())?;
    if flavor::unsupported_flavor(&msg).is_some() {
        msg = flavor::unwrap_request(&msg);
    }
    let body = msg.body().map_err(|e| e.to_string())?;
    if body.pb_type != PTL_RPC_MSG_REQUEST || body.pb_timeout == 0 {
        let (kind, secs) = (body.pb_type, body.pb_timeout);
        return Err(format!(
            "expected a request with a timeout, found type {kind}, timeout {secs} s"
        ));
    }
    let arrived_at = Instant::now();
    let deadline = arrived_at + Duration::from_secs(body.pb_timeout.into());
    Ok(Arrival {
        from: incoming.from,
        portal: incoming.portal,
        xid: Xid(incoming.match_bits),
        msg,
        body,
        cpt,
        arrived_at,
        deadline,
        estimate_secs: 0,
    })
}

/// Closes a slot, also after a panic of the handler. If requests are queued, opens another slot.
struct SlotGuard<'a> {
    service: &'a Arc<Service>,
    part: &'a Arc<ServicePartition>,
}

impl Drop for SlotGuard<'_> {
    fn drop(&mut self) {
        if self.part.close_slot() {
            self.service.spawn_slot(self.part);
        } else if self.part.needs_token_waiter() {
            self.service.spawn_token_waiter(self.part);
        }
    }
}
