//! What becomes of a request: checked, its export found, executed once, answered.

use super::once::{Ask, Outcome, Verdict};
use super::request::{Arrival, Route, Running};
use super::{Export, Reply, ServerRequest, connect, flavor, reply};
use crate::at::wire_secs;
use crate::{BoxFuture, Ptlrpc, opcode};
use lnet::warn_seldom;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use wire::{
    Errno, LDLM_CANCEL, LDLM_CANCEL_REQUEST_PORTAL, LDLM_CONVERT, LDLM_ENQUEUE, MDS_IO_PORTAL, MSG_REPLAY,
    MSG_RESENT, OBD_PING, OST_IO_PORTAL, OST_READ, OST_WRITE, PTLRPC_MSG_VERSION,
};

/// Handles one request.
pub(crate) fn handle(rpc: Arc<Ptlrpc>, mut arrival: Arrival) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        if rpc.faults().loses_request(arrival.body.pb_opc) {
            return;
        }
        if let Some(flavor) = flavor::foreign(&arrival.msg) {
            warn_seldom!(peer = %arrival.from, portal = arrival.portal, flavor, "a request is refused: of the security flavors there is only null here; the peer must not use another one (srpc.flavor, mount option skpath)");
            return reply::send(&rpc, &arrival, &arrival.route(), &Err(Errno::EPROTO), 0).await;
        }
        if rpc.faults().refuses(arrival.body.pb_opc) {
            return reply::send(&rpc, &arrival, &arrival.route(), &Err(Errno::ENOTSUPP), 0).await;
        }
        if let Err(errno) = check(&arrival) {
            let (portal, opc, version) = (arrival.portal, arrival.body.pb_opc, arrival.body.pb_version);
            warn_seldom!(peer = %arrival.from, portal, opc, version, "a request that is not for this service is refused");
            return reply::send(&rpc, &arrival, &arrival.route(), &Err(errno), 0).await;
        }
        if opcode::is_connect(arrival.body.pb_opc) {
            let (result, last_committed) = connect::connect(&rpc, &arrival).await;
            return reply::send(&rpc, &arrival, &arrival.route(), &result, last_committed).await;
        }
        let Some(export) = rpc.exports().get(arrival.body.pb_handle.cookie) else {
            return refuse_unknown(&rpc, &arrival).await;
        };
        if export.peer() != arrival.from {
            let client = &export.client_uuid;
            warn_seldom!(peer = %arrival.from, %client, owner = %export.peer(), "a request with the handle of somebody else is refused");
            return refuse_unknown(&rpc, &arrival).await;
        }
        if arrival.body.pb_conn_cnt < export.conn_cnt() {
            tracing::debug!(peer = %arrival.from, xid = arrival.xid, "a request of an older connection is dropped");
            return;
        }
        export.heard();
        serve(&rpc, &mut arrival, &export).await;
    })
}

/// Tells a client that it is not known. What was negotiated is not known either, so that the reply goes to both match
/// bits that the client may be waiting at; it drops what it does not wait for.
async fn refuse_unknown(rpc: &Ptlrpc, arrival: &Arrival) {
    let route = arrival.route();
    reply::send(rpc, arrival, &route, &Err(Errno::ENOTCONN), 0).await;
    let reply_bits = arrival.body.pb_mbits;
    if reply_bits != 0 && reply_bits != route.reply_bits {
        reply::send(
            rpc,
            arrival,
            &Route { reply_bits, ..route },
            &Err(Errno::ENOTCONN),
            0,
        )
        .await;
    }
}

/// What can be said of a request without knowing its client.
fn check(arrival: &Arrival) -> Result<(), Errno> {
    let (opc, version) = (arrival.body.pb_opc, arrival.body.pb_version);
    if version != opcode::version(opc) | PTLRPC_MSG_VERSION {
        return Err(Errno::EPROTO);
    }
    let io = matches!(opc, OST_READ | OST_WRITE);
    if io && !matches!(arrival.portal, OST_IO_PORTAL | MDS_IO_PORTAL) {
        return Err(Errno::EPROTO);
    }
    // What lets others go on never waits behind what may have to wait for it.
    let frees = matches!(opc, LDLM_CANCEL | LDLM_CONVERT | OBD_PING);
    if arrival.portal == LDLM_CANCEL_REQUEST_PORTAL && !frees {
        return Err(Errno::EPROTO);
    }
    Ok(())
}

/// A request of a client that is known.
async fn serve(rpc: &Arc<Ptlrpc>, arrival: &mut Arrival, export: &Arc<Export>) {
    let route = arrival.route_of(export);
    let opc = arrival.body.pb_opc;
    if opc == OBD_PING || opcode::is_disconnect(opc) {
        if opc != OBD_PING {
            export.end(false).await;
        }
        let last_committed = export.target().last_committed();
        return reply::send(rpc, arrival, &route, &Ok(Reply::default()), last_committed).await;
    }
    // One more, for a close while all others are taken.
    let tag_max = export.data().ocd_maxmodrpcs.max(1).saturating_add(1);
    if arrival.body.pb_tag > tag_max {
        let (client, tag) = (&export.client_uuid, arrival.body.pb_tag);
        warn_seldom!(peer = %arrival.from, %client, tag, "a slot that the client does not have");
        return reply::send(rpc, arrival, &route, &Err(Errno::EPROTO), 0).await;
    }
    let Some(running) = admit(rpc, arrival, export, route).await else {
        return;
    };
    let Some(_busy) = export.begin() else {
        return reply::send(rpc, arrival, &route, &Err(Errno::ENOTCONN), 0).await;
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
        arrived: arrival.at,
        lnet: rpc.lnet().clone(),
        running: running.running.clone(),
    };
    let outcome = match execute(rpc, arrival, export, &mut req).await {
        Err(Errno::ENOTSUPP) => Err(unsupported(&req)),
        outcome => outcome,
    };
    let outcome = Arc::new(outcome);
    let (route, failed) = running.finish(&outcome);
    if failed {
        return;
    }
    reply::send(rpc, arrival, &route, &outcome, export.target().last_committed()).await;
}

/// How a request is refused that its target has no handler for. Of what Lustre has, the program that asked for it is to
/// hear that it is not supported; what nobody knows is refused as Lustre does, which its clients log.
fn unsupported(req: &ServerRequest) -> Errno {
    let (opc, export) = (req.opc, &req.export);
    let format = wire::format::of_request(opc, &req.msg).map(|f| f.name.trim_start_matches("RQF_"));
    let known = format.or_else(|| wire::format::opcode_name(opc));
    let operation = known.unwrap_or("unknown");
    let (client, target) = (&export.client_uuid, export.target().uuid());
    warn_seldom!(peer = %req.peer, %client, target, opc, operation, "a request is refused: there is no such operation here");
    match known {
        Some(_) => Errno::EOPNOTSUPP,
        None => Errno::ENOTSUPP,
    }
}

/// Runs the target's handler, with early replies as long as it takes.
async fn execute(
    rpc: &Arc<Ptlrpc>,
    arrival: &Arrival,
    export: &Arc<Export>,
    req: &mut ServerRequest,
) -> Outcome {
    let running = req.running.clone();
    let mut handling = export.target().handle(req);
    if !arrival.takes_early() {
        return handling.await;
    }
    let cfg = rpc.config();
    loop {
        let early_at = early_at(Instant::now(), running.route().deadline, cfg.at_early_margin);
        tokio::select! {
            biased;
            result = &mut handling => return result,
            () = sleep_until(early_at) => {}
        }
        let now = Instant::now();
        let deadline = now + cfg.at_extra;
        // The deadline may have moved meanwhile: the client has asked again.
        if early_at_passed(now, running.route().deadline, cfg.at_early_margin) {
            running.extend(deadline);
            let secs = wire_secs(deadline.saturating_duration_since(arrival.at));
            reply::send_early(rpc, arrival, &running.route(), secs).await;
        }
    }
}

/// When to send an early reply: a little before the deadline, or half-way if that is near.
fn early_at(now: Instant, deadline: Instant, margin: Duration) -> Instant {
    let left = deadline.saturating_duration_since(now);
    now + left.saturating_sub(margin).max(left / 2)
}

fn early_at_passed(now: Instant, deadline: Instant, margin: Duration) -> bool {
    deadline.saturating_duration_since(now) <= margin
}

/// A request that is being executed, until `finish`; or until it is dropped, when its handler panicked.
struct RunGuard {
    running: Arc<Running>,
    export: Arc<Export>,
    ask: Ask,
    opc: u32,
    finished: bool,
}

impl RunGuard {
    /// Where the reply goes by now, and whether there is none.
    fn finish(mut self, outcome: &Arc<Outcome>) -> (Route, bool) {
        self.finished = true;
        let failed = self.running.bulk_failed();
        // Bulk goes by the match bits of one attempt: the next one needs it anew.
        let keep = !failed && !self.running.used_bulk() && has_effect(self.ask.tag, self.opc, outcome);
        self.end(keep.then(|| outcome.clone()));
        (self.running.route(), failed)
    }

    fn end(&self, outcome: Option<Arc<Outcome>>) {
        self.export
            .once
            .lock()
            .finished(self.ask.xid, self.ask.tag, outcome);
        self.running.finish();
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        if !self.finished {
            self.end(None);
        }
    }
}

/// Whether executing the request again would be something else than executing it once.
fn has_effect(tag: u16, opc: u32, outcome: &Outcome) -> bool {
    match outcome {
        Ok(reply) => tag != 0 || reply.transno != 0 || opc == LDLM_ENQUEUE,
        Err(Errno::EINPROGRESS) => false,
        Err(_) => tag != 0,
    }
}

/// Decides whether a request is to be executed; if not, does what is to be done instead.
async fn admit(rpc: &Arc<Ptlrpc>, arrival: &Arrival, export: &Arc<Export>, route: Route) -> Option<RunGuard> {
    let body = &arrival.body;
    let ask = Ask {
        xid: arrival.xid,
        tag: body.pb_tag,
        last_xid: body.pb_last_xid,
        resent: body.pb_flags & MSG_RESENT != 0,
        replay: body.pb_flags & MSG_REPLAY != 0,
    };
    loop {
        let verdict = {
            let mut once = export.once.lock();
            let verdict = once.admit(&ask);
            if let Verdict::Run = verdict {
                let running = Arc::new(Running::new(route));
                once.started(ask.xid, running.clone());
                let export = export.clone();
                return Some(RunGuard {
                    running,
                    export,
                    ask,
                    opc: body.pb_opc,
                    finished: false,
                });
            }
            verdict
        };
        let last_committed = export.target().last_committed();
        match verdict {
            Verdict::Run | Verdict::Drop => return None,
            Verdict::Join(running) => {
                if running.take_over(route) {
                    return None;
                }
                running.finished().await;
            }
            Verdict::Answer(outcome) => {
                reply::send(rpc, arrival, &route, &outcome, last_committed).await;
                return None;
            }
            Verdict::Refuse(errno) => {
                reply::send(rpc, arrival, &route, &Err(errno), last_committed).await;
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{early_at, has_effect};
    use crate::Reply;
    use std::time::Duration;
    use tokio::time::Instant;
    use wire::Errno;

    #[test]
    fn an_early_reply_leaves_before_the_deadline() {
        let t = Instant::now();
        let secs = Duration::from_secs;
        assert_eq!(early_at(t, t + secs(11), secs(5)), t + secs(6));
        assert_eq!(early_at(t, t + secs(4), secs(5)), t + secs(2));
    }

    #[test]
    fn only_what_has_an_effect_is_remembered() {
        assert!(has_effect(1, wire::MDS_REINT, &Err(Errno::EEXIST)));
        assert!(has_effect(
            0,
            wire::OST_PUNCH,
            &Ok(Reply::default().with_transno(4))
        ));
        assert!(!has_effect(0, wire::MDS_GETATTR, &Ok(Reply::default())));
        assert!(!has_effect(1, wire::MDS_REINT, &Err(Errno::EINPROGRESS)));
    }
}
