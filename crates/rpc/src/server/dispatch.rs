//! Handles a request: checks it, finds its export, executes it once, replies.

use super::recovery::{TargetRecovery, Turn, TurnGuard};
use super::reply_cache::{Admission, Outcome, RequestKey};
use super::request::{Arrival, Execution, Route};
use super::{EndReason, Export, KeptReply, Reply, ServerRequest, flavor, inject, reply};
use crate::at::wire_secs;
use crate::{BoxFuture, Ptlrpc, opcode};
use lnet::warn_rate_limited;
use parking_lot::Mutex;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, sleep_until};
use wire::{
    Errno, LDLM_CANCEL, LDLM_CANCEL_REQUEST_PORTAL, LDLM_CONVERT, LDLM_ENQUEUE, MDS_IO_PORTAL, MSG_REPLAY,
    MSG_RESENT, OBD_PING, OST_IO_PORTAL, OST_READ, OST_WRITE, OUT_UPDATE, PTLRPC_MSG_VERSION, Transno, Xid,
};

/// Maximum time for which the server holds locks for a client that does not acknowledge a reply,
/// while the change is not committed.
const HOLD_MAX: Duration = Duration::from_secs(5);

/// Handles one request.
pub(crate) fn handle(rpc: Arc<Ptlrpc>, mut arrival: Arrival) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        #[cfg(feature = "faults")]
        if rpc.faults().loses_request(arrival.body.pb_opc) {
            return;
        }
        if let Some(flavor) = flavor::unsupported_flavor(&arrival.msg) {
            warn_rate_limited!(peer = %arrival.from, portal = arrival.portal, flavor, "request refused: security flavor not supported; configure the peer to use the null flavor (srpc.flavor, mount option skpath)");
            return reply::send(
                &rpc,
                &arrival,
                &arrival.route(),
                &Err(Errno::EPROTO),
                Transno::NONE,
            )
            .await;
        }
        #[cfg(feature = "faults")]
        if rpc.faults().refuses(arrival.body.pb_opc) {
            return reply::send(
                &rpc,
                &arrival,
                &arrival.route(),
                &Err(Errno::ENOTSUPP),
                Transno::NONE,
            )
            .await;
        }
        if let Err(errno) = check(&arrival) {
            let (portal, opc, version) = (arrival.portal, arrival.body.pb_opc, arrival.body.pb_version);
            warn_rate_limited!(peer = %arrival.from, portal, opc, version, "request refused: opcode or version invalid on this portal");
            return reply::send(&rpc, &arrival, &arrival.route(), &Err(errno), Transno::NONE).await;
        }
        if opcode::is_connect(arrival.body.pb_opc) {
            return inject::handle_connect(&rpc, &arrival).await;
        }
        let Some(export) = rpc.exports().get(arrival.body.pb_handle.cookie) else {
            return refuse_unknown(&rpc, &arrival).await;
        };
        if export.peer() != arrival.from {
            let client = &export.client_uuid;
            warn_rate_limited!(peer = %arrival.from, %client, owner = %export.peer(), "request refused: its handle belongs to another peer");
            return refuse_unknown(&rpc, &arrival).await;
        }
        if arrival.body.pb_conn_cnt < export.conn_cnt() {
            tracing::debug!(peer = %arrival.from, xid = %arrival.xid, "dropping request of an older connection");
            return;
        }
        if inject::loses_request(&arrival, &export).await {
            return;
        }
        export.note_heard();
        handle_connected(&rpc, &mut arrival, &export).await;
    })
}

/// Tells an unknown client to reconnect. The negotiated flags are unknown, too, so the server sends
/// one reply to each of the two match bits at which the client may wait. The client's LNet drops
/// the reply that matches no buffer.
async fn refuse_unknown(rpc: &Ptlrpc, arrival: &Arrival) {
    let route = arrival.route();
    reply::send(rpc, arrival, &route, &Err(Errno::ENOTCONN), Transno::NONE).await;
    let reply_bits = arrival.body.pb_mbits;
    if reply_bits != 0 && reply_bits != route.reply_bits {
        reply::send(
            rpc,
            arrival,
            &Route { reply_bits, ..route },
            &Err(Errno::ENOTCONN),
            Transno::NONE,
        )
        .await;
    }
}

/// The checks that need no export.
fn check(arrival: &Arrival) -> Result<(), Errno> {
    let (opc, version) = (arrival.body.pb_opc, arrival.body.pb_version);
    if version != opcode::version(opc) | PTLRPC_MSG_VERSION {
        return Err(Errno::EPROTO);
    }
    let io = matches!(opc, OST_READ | OST_WRITE);
    if io && !matches!(arrival.portal, OST_IO_PORTAL | MDS_IO_PORTAL) {
        return Err(Errno::EPROTO);
    }
    // The cancel portal takes no requests that wait for resources, so that requests that release
    // resources never queue behind them.
    let never_waits = matches!(opc, LDLM_CANCEL | LDLM_CONVERT | OBD_PING);
    if arrival.portal == LDLM_CANCEL_REQUEST_PORTAL && !never_waits {
        return Err(Errno::EPROTO);
    }
    Ok(())
}

/// Handles a request of a connected client. While the target recovers, the request may have to
/// wait; it does so in a task of its own, and frees its slot.
async fn handle_connected(rpc: &Arc<Ptlrpc>, arrival: &mut Arrival, export: &Arc<Export>) {
    let Some(recovery) = export.recovery() else {
        return handle_in_turn(rpc, arrival, export, None).await;
    };
    let is_final_ping = TargetRecovery::is_final_ping(arrival);
    let opc = arrival.body.pb_opc;
    let turn = match opc == OBD_PING || opcode::is_disconnect(opc) {
        true => None,
        false => recovery.turn_of(arrival, export),
    };
    if turn.is_none() && !is_final_ping {
        return handle_in_turn(rpc, arrival, export, None).await;
    }
    let Some(guard) = recovery.begin_waiting(export) else {
        warn_rate_limited!(peer = %arrival.from, client = %export.client_uuid, opc, "request dropped: too many requests of the client wait for the end of the recovery");
        return;
    };
    let (rpc, mut arrival, export) = (rpc.clone(), arrival.clone(), export.clone());
    let cpt = rpc.cpts().get(arrival.cpt).handle().clone();
    cpt.spawn(async move {
        match turn {
            Some(turn) => handle_in_turn(&rpc, &mut arrival, &export, Some((guard, turn))).await,
            None => answer_final_ping(&rpc, &arrival, &export).await,
        }
    });
}

/// Answers the final ping of a recovering client when the recovery has ended.
async fn answer_final_ping(rpc: &Arc<Ptlrpc>, arrival: &Arrival, export: &Arc<Export>) {
    let execution = Execution::new(arrival.negotiated_route(export));
    let ended = async {
        match export.recovery() {
            Some(recovery) => recovery.wait_for_end(export).await,
            None => Ok(()),
        }
    };
    let ended = async {
        let result = ended.await;
        inject::delay_final_ping(arrival, export).await;
        result
    };
    let ended = with_early_replies(rpc, arrival, &execution, ended).await;
    let outcome = ended.map(|()| Reply::default());
    reply::send(
        rpc,
        arrival,
        &execution.route(),
        &outcome,
        export.target().last_committed(),
    )
    .await;
}

/// Handles a request of a connected client, in its turn if the target recovers.
async fn handle_in_turn(
    rpc: &Arc<Ptlrpc>,
    arrival: &mut Arrival,
    export: &Arc<Export>,
    turn: Option<(TurnGuard, Turn)>,
) {
    let route = arrival.negotiated_route(export);
    let opc = arrival.body.pb_opc;
    if opc == OBD_PING || opcode::is_disconnect(opc) {
        match opc {
            OBD_PING => export.tidy_claims(),
            _ => export.end(EndReason::Disconnected).await,
        }
        let last_committed = export.target().last_committed();
        return reply::send(rpc, arrival, &route, &Ok(Reply::default()), last_committed).await;
    }
    // One more slot, for a close while all others are in use.
    let tag_max = export.data().ocd_maxmodrpcs.max(1).saturating_add(1);
    if arrival.body.pb_tag > tag_max {
        let (client, tag) = (&export.client_uuid, arrival.body.pb_tag);
        warn_rate_limited!(peer = %arrival.from, %client, tag, tag_max, "request refused: pb_tag exceeds the granted slots");
        return reply::send(rpc, arrival, &route, &Err(Errno::EPROTO), Transno::NONE).await;
    }
    if arrival.body.pb_flags & MSG_REPLAY != 0 && turn.is_none() {
        let client = &export.client_uuid;
        warn_rate_limited!(peer = %arrival.from, %client, opc, "replay refused: the target does not recover");
        return reply::send(rpc, arrival, &route, &Err(Errno::EPROTO), Transno::NONE).await;
    }
    let Some((guard, kept)) = admit(rpc, arrival, export, route).await else {
        return;
    };
    let Some(_active) = export.begin() else {
        return reply::send(rpc, arrival, &route, &Err(Errno::ENOTCONN), Transno::NONE).await;
    };
    let mut req = ServerRequest {
        xid: arrival.xid,
        opc,
        body: arrival.body,
        msg: arrival.take_message(),
        peer: arrival.from,
        portal: arrival.portal,
        cpt: arrival.cpt,
        export: export.clone(),
        arrived: arrival.arrived_at,
        lnet: rpc.lnet().clone(),
        execution: guard.execution.clone(),
        held: Mutex::new(None),
    };
    inject::delay_silently(&req).await;
    let outcome = match execute(rpc, arrival, export, &mut req, turn, kept).await {
        Err(Errno::ENOTSUPP) => Err(unsupported_errno(&req)),
        outcome => outcome,
    };
    export.claims.note_transno(transno_of(&outcome));
    let outcome = Arc::new(outcome);
    let (route, bulk_failed) = guard.finish(&outcome);
    if bulk_failed {
        return;
    }
    let last_committed = export.target().last_committed();
    let is_lost = inject::loses_reply(arrival, export).await;
    match req.held.into_inner() {
        None if is_lost => {}
        None => reply::send(rpc, arrival, &route, &outcome, last_committed).await,
        Some(held) => {
            let sent = reply::send_acknowledged(rpc, arrival, &route, &outcome, last_committed, is_lost);
            let (export, transno) = (export.clone(), transno_of(&outcome));
            let limit = async move {
                tokio::select! {
                    biased;
                    () = export.target().committed(transno) => {}
                    () = export.gone() => {}
                    () = sleep(HOLD_MAX) => {}
                }
            };
            let holding = hold_until_acknowledged(held, sent, limit);
            cpt::poll_then_spawn(rpc.cpts().get(arrival.cpt).handle(), holding);
        }
    }
}

/// Holds the locks of a reply until the client has acknowledged it (`sent` is true), at most until
/// `limit`. Then goes on sending: under load a transaction can be committed before its reply got
/// the credits to leave.
async fn hold_until_acknowledged<H>(
    held: H,
    sent: impl Future<Output = bool>,
    limit: impl Future<Output = ()>,
) {
    let (mut sent, mut limit) = (pin!(sent), pin!(limit));
    let acknowledged = tokio::select! {
        biased;
        acknowledged = &mut sent => Some(acknowledged),
        () = &mut limit => None,
    };
    if acknowledged == Some(false) {
        limit.await;
    }
    drop(held);
    if acknowledged.is_none() {
        sent.await;
    }
}

/// The transno of a reply; 0 if it has none.
fn transno_of(outcome: &Outcome) -> Transno {
    outcome.as_ref().map_or(Transno::NONE, |reply| reply.transno)
}

/// The errno for an opcode without a handler: EOPNOTSUPP for user space if Lustre has the
/// operation, else ENOTSUPP, which Lustre's clients log. Logs the request.
fn unsupported_errno(req: &ServerRequest) -> Errno {
    let (opc, export) = (req.opc, &req.export);
    let format = wire::format::of_request(opc, &req.msg).map(|f| f.name.trim_start_matches("RQF_"));
    let known_name = format.or_else(|| wire::format::opcode_name(opc));
    let operation = known_name.unwrap_or("unknown");
    let (client, target) = (&export.client_uuid, export.target().uuid());
    warn_rate_limited!(peer = %req.peer, %client, target, opc, operation, "request refused: operation not supported");
    match known_name {
        Some(_) => Errno::EOPNOTSUPP,
        None => Errno::ENOTSUPP,
    }
}

/// Runs the target's handler, and sends early replies while it waits and runs. `kept`: an earlier
/// start of the target has executed the request.
async fn execute(
    rpc: &Arc<Ptlrpc>,
    arrival: &Arrival,
    export: &Arc<Export>,
    req: &mut ServerRequest,
    turn: Option<(TurnGuard, Turn)>,
    kept: Option<KeptReply>,
) -> Outcome {
    let execution = req.execution.clone();
    let target = export.target();
    if turn.is_none() && kept.is_none() {
        return with_early_replies(rpc, arrival, &execution, inject::handle(export, req)).await;
    }
    let handling = Box::pin(async move {
        let mut turn = turn;
        if let Some((guard, turn)) = &mut turn {
            guard.wait(*turn, export).await?;
        }
        match kept {
            Some(kept) => target.reconstruct(req, kept).await,
            None => inject::handle(export, req).await,
        }
    });
    with_early_replies(rpc, arrival, &execution, handling).await
}

/// Waits for the end of an execution, and sends early replies meanwhile.
async fn with_early_replies<T>(
    rpc: &Arc<Ptlrpc>,
    arrival: &Arrival,
    execution: &Execution,
    handling: impl Future<Output = T>,
) -> T {
    let mut handling = pin!(handling);
    if !arrival.takes_early() {
        return handling.await;
    }
    let cfg = rpc.config();
    loop {
        let early_reply_at = early_reply_at(Instant::now(), execution.route().deadline, cfg.at_early_margin);
        tokio::select! {
            biased;
            result = &mut handling => return result,
            () = sleep_until(early_reply_at) => {}
        }
        let now = Instant::now();
        let deadline = now + cfg.at_extra;
        // The deadline may have changed, because the client may have resent the request.
        if is_early_reply_due(now, execution.route().deadline, cfg.at_early_margin) {
            execution.extend(deadline);
            let secs = wire_secs(deadline.saturating_duration_since(arrival.arrived_at));
            reply::send_early(rpc, arrival, &execution.route(), secs).await;
        }
    }
}

/// When to send an early reply: `margin` before the deadline, or half-way if that is later.
fn early_reply_at(now: Instant, deadline: Instant, margin: Duration) -> Instant {
    let left = deadline.saturating_duration_since(now);
    now + left.saturating_sub(margin).max(left / 2)
}

fn is_early_reply_due(now: Instant, deadline: Instant, margin: Duration) -> bool {
    deadline.saturating_duration_since(now) <= margin
}

/// Guard of a request in execution. Dropped without `finish` when the handler panics.
struct ExecutionGuard {
    execution: Arc<Execution>,
    export: Arc<Export>,
    key: RequestKey,
    opc: u32,
    finished: bool,
}

impl ExecutionGuard {
    /// Ends the execution. Returns the reply's current route, and whether bulk failed: the server
    /// then sends no reply.
    fn finish(mut self, outcome: &Arc<Outcome>) -> (Route, bool) {
        self.finished = true;
        let bulk_failed = self.execution.bulk_failed();
        // The reply of a request with bulk is not cached: a resend has other match bits and needs
        // its bulk again.
        let keep = !bulk_failed && !self.execution.used_bulk() && has_effect(&self.key, self.opc, outcome);
        self.end(keep.then(|| outcome.clone()));
        (self.execution.route(), bulk_failed)
    }

    /// Ends the execution; with an `outcome`, the reply is cached.
    fn end(&self, outcome: Option<Arc<Outcome>>) {
        self.export.replies.lock().end(&self.key, outcome);
        self.execution.finish();
    }
}

impl Drop for ExecutionGuard {
    fn drop(&mut self) {
        if !self.finished {
            self.end(None);
        }
    }
}

/// Whether executing a request with this outcome twice may differ from executing it once: a resend,
/// or a duplicate that the network delivers late. That of a failed request may succeed.
fn has_effect(key: &RequestKey, opc: u32, outcome: &Outcome) -> bool {
    // The messages of MDTs lock names and have no slots.
    let changes_state = key.tag != 0 || opc == OUT_UPDATE;
    match outcome {
        Ok(reply) => changes_state || reply.transno != Transno::NONE || opc == LDLM_ENQUEUE,
        // The client sends the request again with a new xid, but a replay with the same one.
        Err(Errno::EINPROGRESS) => changes_state && !key.replay,
        Err(_) => changes_state,
    }
}

/// Decides whether to execute a request. If not, sends the cached reply or refusal, if there is
/// one, and returns `None`.
async fn admit(
    rpc: &Arc<Ptlrpc>,
    arrival: &Arrival,
    export: &Arc<Export>,
    route: Route,
) -> Option<(ExecutionGuard, Option<KeptReply>)> {
    let body = &arrival.body;
    let key = RequestKey {
        xid: arrival.xid,
        tag: body.pb_tag,
        last_xid: Xid(body.pb_last_xid),
        resent: body.pb_flags & MSG_RESENT != 0,
        replay: body.pb_flags & MSG_REPLAY != 0,
        transno: Transno(body.pb_transno),
    };
    loop {
        let admission = {
            let mut cache = export.replies.lock();
            let admission = cache.admit(&key);
            let kept = match &admission {
                Admission::Run => Some(None),
                Admission::Reconstruct(kept) => Some(Some(*kept)),
                _ => None,
            };
            if let Some(kept) = kept {
                let execution = Arc::new(Execution::new(route));
                cache.begin(key.xid, execution.clone());
                let guard = ExecutionGuard {
                    execution,
                    export: export.clone(),
                    key,
                    opc: body.pb_opc,
                    finished: false,
                };
                return Some((guard, kept));
            }
            admission
        };
        let last_committed = export.target().last_committed();
        match admission {
            Admission::Run | Admission::Reconstruct(_) | Admission::Drop => return None,
            Admission::Join(execution) => {
                if execution.take_over(route) {
                    return None;
                }
                execution.wait_until_done().await;
            }
            Admission::Answer(_) if inject::loses_reply(arrival, export).await => return None,
            Admission::Answer(outcome) => {
                reply::send(rpc, arrival, &route, &outcome, last_committed).await;
                return None;
            }
            Admission::Refuse(errno) => {
                reply::send(rpc, arrival, &route, &Err(errno), last_committed).await;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RequestKey, early_reply_at, has_effect, hold_until_acknowledged};
    use crate::Reply;
    use std::future::{pending, ready};
    use std::sync::Arc;
    use std::time::Duration;
    use tokio::sync::oneshot;
    use tokio::time::Instant;
    use wire::{Errno, Transno, Xid};

    #[test]
    fn an_early_reply_leaves_before_the_deadline() {
        let t = Instant::now();
        let secs = Duration::from_secs;
        assert_eq!(early_reply_at(t, t + secs(11), secs(5)), t + secs(6));
        assert_eq!(early_reply_at(t, t + secs(4), secs(5)), t + secs(2));
    }

    #[tokio::test]
    async fn locks_are_released_at_the_commit_and_the_reply_is_still_sent() {
        let held = Arc::new(());
        let weak = Arc::downgrade(&held);
        let (credit, credits) = oneshot::channel::<()>();
        let sent = async move { credits.await.is_ok() };
        let holding = tokio::spawn(hold_until_acknowledged(held, sent, ready(())));
        while weak.strong_count() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(!holding.is_finished(), "the reply waits for credits");
        assert_eq!(credit.send(()), Ok(()), "the reply is not given up");
        holding.await.expect("the reply was sent");
    }

    #[tokio::test]
    async fn an_acknowledgement_releases_the_locks_and_a_lost_reply_does_not() {
        hold_until_acknowledged((), ready(true), pending()).await;
        let (commit, committed) = oneshot::channel::<()>();
        let held = Arc::new(());
        let weak = Arc::downgrade(&held);
        let limit = async move { drop(committed.await) };
        let holding = tokio::spawn(hold_until_acknowledged(held, ready(false), limit));
        tokio::task::yield_now().await;
        assert_eq!(weak.strong_count(), 1, "the locks are held until the commit");
        drop(commit);
        holding.await.expect("the holding ends");
    }

    #[test]
    fn only_replies_with_effects_are_cached() {
        let key = |tag, replay| RequestKey {
            xid: Xid(128),
            tag,
            last_xid: Xid::NONE,
            resent: false,
            replay,
            transno: Transno::NONE,
        };
        let has_effect = |key: RequestKey, opc, outcome| has_effect(&key, opc, &outcome);
        let changed = Ok(Reply::default().with_transno(Transno(4)));
        assert!(has_effect(key(0, false), wire::OST_PUNCH, changed));
        assert!(!has_effect(
            key(0, false),
            wire::MDS_GETATTR,
            Ok(Reply::default())
        ));
        assert!(!has_effect(key(0, false), wire::MDS_GETATTR, Err(Errno::ENOENT)));
        assert!(has_effect(key(0, false), wire::OUT_UPDATE, Ok(Reply::default())));
        assert!(has_effect(key(0, false), wire::OUT_UPDATE, Err(Errno::EBUSY)));
        assert!(has_effect(key(1, false), wire::MDS_REINT, Err(Errno::EEXIST)));
        let in_progress = Err(Errno::EINPROGRESS);
        assert!(has_effect(key(1, false), wire::MDS_REINT, in_progress.clone()));
        assert!(!has_effect(key(1, true), wire::MDS_REINT, in_progress));
    }
}
