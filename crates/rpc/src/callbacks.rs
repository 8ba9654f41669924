//! The service on portal 15: passes lock callbacks from servers to the owner of the import that the
//! callback's handle names (docs/protocol.md, "Locks (LDLM)").

use crate::fail::Stage;
use crate::server::{Arrival, reply};
use crate::{BoxFuture, Ptlrpc};
use lnet::warn_rate_limited;
use std::sync::Arc;
use wire::{Errno, Transno};

/// Handles one callback.
pub(crate) fn handle(rpc: Arc<Ptlrpc>, arrival: Arrival) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        if rpc.fail().loses(Stage::Callback, &arrival.body).await {
            return;
        }
        let from = arrival.from;
        let result = match rpc.import(arrival.body.pb_handle.cookie) {
            // Only the server that the import is connected to may call back. Requests over `lo`
            // come from this process.
            Some(import) if import.peer() == from || from.is_lo() => {
                import
                    .owner()
                    .callback(arrival.body.pb_opc, arrival.msg.clone())
                    .await
            }
            _ => {
                warn_rate_limited!(peer = %from, opc = arrival.body.pb_opc, "callback refused: its handle names no import that is connected to this peer");
                Err(Errno::ENOTCONN)
            }
        };
        reply::send(&rpc, &arrival, &arrival.route(), &result, Transno::NONE).await;
    })
}
