//! Injects the faults of `fail_loc` into the requests that a server handles
//! ([`crate::FailPoints`]). Without a fault, each function only looks whether one is selected.

use super::reply_cache::Outcome;
use super::{Arrival, Export, ServerRequest, connect, reply};
use crate::Ptlrpc;
use crate::fail::{Facts, Server, Stage};
use std::sync::Arc;
use wire::format::bufs;

/// Handles a connect.
pub(super) async fn handle_connect(rpc: &Arc<Ptlrpc>, arrival: &Arrival) {
    let fail = rpc.fail();
    let target = arrival.msg.str(bufs::CONNECT_TARGET).unwrap_or_default();
    let facts = Facts::of(Server::of_target(target), &arrival.body, &arrival.msg);
    if fail.inject(Stage::Arrival, &facts).await == Ok(true) {
        return;
    }
    let (result, last_committed) = match fail.inject(Stage::Handling, &facts).await {
        Ok(_) => connect::connect(rpc, arrival).await,
        Err(errno) => (Err(errno), wire::Transno::NONE),
    };
    if fail.inject(Stage::Reply, &facts).await != Ok(true) {
        reply::send(rpc, arrival, &arrival.route(), &result, last_committed).await;
    }
}

/// The facts about a request of a connected client.
fn facts_of(arrival: &Arrival, export: &Export) -> Facts {
    Facts::of(
        Server::of_target(export.target_uuid()),
        &arrival.body,
        &arrival.msg,
    )
}

/// Whether a fault loses the request.
pub(super) async fn loses_request(arrival: &Arrival, export: &Export) -> bool {
    let fail = export.fail();
    fail.is_armed() && fail.inject(Stage::Arrival, &facts_of(arrival, export)).await == Ok(true)
}

/// Whether a fault loses the reply to the request, of which only the opcode is left.
pub(super) async fn loses_reply(arrival: &Arrival, export: &Export) -> bool {
    let fail = export.fail();
    fail.is_armed() && fail.inject(Stage::Reply, &facts_of(arrival, export)).await == Ok(true)
}

/// Waits as long as a fault delays the request without early replies.
pub(super) async fn delay_silently(req: &ServerRequest) {
    let fail = req.export.fail();
    if fail.is_armed() {
        let facts = Facts::of(Server::of_target(req.export.target_uuid()), &req.body, &req.msg);
        let _ = fail.inject(Stage::SilentHandling, &facts).await;
    }
}

/// Waits as long as a fault delays the answer to a client's final ping of a recovery.
pub(super) async fn delay_final_ping(arrival: &Arrival, export: &Export) {
    let fail = export.fail();
    if fail.is_armed() {
        let _ = fail.inject(Stage::Handled, &facts_of(arrival, export)).await;
    }
}

/// Runs the target's handler, unless a fault lets the request fail.
pub(super) async fn handle(export: &Export, req: &mut ServerRequest) -> Outcome {
    let fail = export.fail();
    if !fail.is_armed() {
        return export.target().handle(req).await;
    }
    let facts = Facts::of(Server::of_target(export.target_uuid()), &req.body, &req.msg);
    fail.inject(Stage::Handling, &facts).await?;
    let outcome = export.target().handle(req).await;
    fail.inject(Stage::Handled, &facts).await?;
    outcome
}
