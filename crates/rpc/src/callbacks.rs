//! The service of portal 15: lock callbacks from servers, handed to the owner of the import that they name (guide 5.6).

use crate::server::{Arrival, reply};
use crate::{BoxFuture, Ptlrpc};
use lnet::warn_seldom;
use std::sync::Arc;
use wire::Errno;

/// Handles one callback.
pub(crate) fn handle(rpc: Arc<Ptlrpc>, arrival: Arrival) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let from = arrival.from;
        let result = match rpc.import(arrival.body.pb_handle.cookie) {
            // Only the server that an import is connected to may call it back. Nobody else speaks by `lo`.
            Some(import) if import.peer() == from || from.is_lo() => {
                import
                    .owner()
                    .callback(arrival.body.pb_opc, arrival.msg.clone())
                    .await
            }
            _ => {
                warn_seldom!(peer = %from, opc = arrival.body.pb_opc, "a callback to nobody here is refused");
                Err(Errno::ENOTCONN)
            }
        };
        reply::send(&rpc, &arrival, &arrival.route(), &result, 0).await;
    })
}
