"""Who may do what: authorization, the rights that system topics ask for, and checks while a client stays."""
