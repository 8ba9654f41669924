//! The service of portal 15: lock callbacks from servers, handed to the owner of the import that they name (guide 5.6).

use crate::server::{Arrival, reply};
use crate::{BoxFuture, Ptlrpc};
use std::sync::Arc;
use wire::Errno;

/// Handles one callback.
pub(crate) fn handle(rpc: Arc<Ptlrpc>, arrival: Arrival) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let result = match rpc.import(arrival.body.pb_handle.cookie) {
            Some(import) => {
                import
                    .owner()
                    .callback(arrival.body.pb_opc, arrival.msg.clone())
                    .await
            }
            None => Err(Errno::ENOTCONN),
        };
        reply::send(&rpc, &arrival, &arrival.route(), result, 0).await;
    })
}
