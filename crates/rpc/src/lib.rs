//! ptlrpc: requests and replies, bulk, imports and exports, services per partition.
