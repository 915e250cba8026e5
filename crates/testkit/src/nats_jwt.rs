//! A NATS server that knows its users by JWTs, and the file of credentials of one of them.
//!
//! The operator has signed the account, and the account the user, in the format of `nsc`. None of
//! the JWTs expires. The private keys of the operator and the account were not kept.

const OPERATOR: &str = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJpYXQiOjE3MDAwMDAwMDAsImlzcyI6Ik9DS1c0RlBXNTc1NFdHUFBENk9CNUtSNFNIVUtCWlRLQk5PV0o1WjNaTVRPTEVGNFRUN1ZSSFhWIiwianRpIjoiTzc3SzNMQVYyWklaVUhURTJWRUtEQlJSSDJTTDNEV1FKSktWVldKNEZWTjZSWUVaU0FPQSIsIm5hbWUiOiJvcGVyYXRvciIsIm5hdHMiOnsidHlwZSI6Im9wZXJhdG9yIiwidmVyc2lvbiI6Mn0sInN1YiI6Ik9DS1c0RlBXNTc1NFdHUFBENk9CNUtSNFNIVUtCWlRLQk5PV0o1WjNaTVRPTEVGNFRUN1ZSSFhWIn0.JOf8iR3DNuuNuNj-m9iwGU_k0Ah64lazQIxSzHb5nDIfMqdE0Qqc236UZ_Hpttpgeyylgc97GOHjnRN5ydDbCg";
const ACCOUNT: &str = "AD2V53MZX26MTXPUKWUYOJ7WCCIPDUAQSQ6VGHCHLW2MWPBJ5WCPBVI5";
const ACCOUNT_JWT: &str = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJpYXQiOjE3MDAwMDAwMDAsImlzcyI6Ik9DS1c0RlBXNTc1NFdHUFBENk9CNUtSNFNIVUtCWlRLQk5PV0o1WjNaTVRPTEVGNFRUN1ZSSFhWIiwianRpIjoiR1cyR1RYUEZBRldIVUZQNjJTNFlYVzYzNVRFS05YUkNIWVNQQkVZSExQWU5MUVBGTDZUUSIsIm5hbWUiOiJhY2NvdW50IiwibmF0cyI6eyJkZWZhdWx0X3Blcm1pc3Npb25zIjp7InB1YiI6e30sInN1YiI6e319LCJsaW1pdHMiOnsiY29ubiI6LTEsImRhdGEiOi0xLCJleHBvcnRzIjotMSwiaW1wb3J0cyI6LTEsImxlYWYiOi0xLCJwYXlsb2FkIjotMSwic3VicyI6LTEsIndpbGRjYXJkcyI6dHJ1ZX0sInR5cGUiOiJhY2NvdW50IiwidmVyc2lvbiI6Mn0sInN1YiI6IkFEMlY1M01aWDI2TVRYUFVLV1VZT0o3V0NDSVBEVUFRU1E2VkdIQ0hMVzJNV1BCSjVXQ1BCVkk1In0.0btezyeXekeROxtOUUN9Ysnj3nFQPQ1NPJyOUoRfmVgsWVEGlIVgz8NO_HtSpcv4VJeoTVK9z1iTqXWerU6aCA";
const USER_JWT: &str = "eyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJpYXQiOjE3MDAwMDAwMDAsImlzcyI6IkFEMlY1M01aWDI2TVRYUFVLV1VZT0o3V0NDSVBEVUFRU1E2VkdIQ0hMVzJNV1BCSjVXQ1BCVkk1IiwianRpIjoiMzQ1V0hLTUVDSFpMWkJUNkhJWU5CREFQQzJGRTNaRkdPVFE3WjJLSFUzN09RQ0ZKVldEUSIsIm5hbWUiOiJ1c2VyIiwibmF0cyI6eyJkYXRhIjotMSwicGF5bG9hZCI6LTEsInB1YiI6e30sInN1YiI6e30sInN1YnMiOi0xLCJ0eXBlIjoidXNlciIsInZlcnNpb24iOjJ9LCJzdWIiOiJVQVJVTEFMUVpFVUVKRUVBRTJJTUxMWldZS1dXTjJPNlVTTkpCRkxNU0tEQUg3N1AzVkY0S0xFWSJ9.Pe3YMiB8huNJzWPW8t1WNoTPV79ylqOZRL8MkzxxMwZuFzq8BqpGO0Fxh0RboXryQPrn5Z_cPH2FNKK0O2_SCA";

/// The private key of the user.
pub const USER_SEED: &str = "SUAGJJEJGVRK6T5O3FKIPL6HHOJCGV4VOSPTR6BAZZIWFTY35CA74KJ5UY";

/// The settings of a server that only the user can use.
pub fn settings() -> String {
    let accounts = format!("resolver_preload: {{ {ACCOUNT}: {ACCOUNT_JWT} }}");
    format!("operator: {OPERATOR}\nresolver: MEMORY\n{accounts}")
}

/// A file of credentials with this private key.
pub fn credentials(seed: &str) -> String {
    format!(
        "-----BEGIN NATS USER JWT-----\n{USER_JWT}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}
