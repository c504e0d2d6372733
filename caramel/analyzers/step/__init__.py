"""What a step needs and how long it takes: facts about the program, before anything is decided."""
