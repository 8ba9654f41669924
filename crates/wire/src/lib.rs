//! Every message, structure, opcode and flag of Lustre's network protocol, as plain data.
